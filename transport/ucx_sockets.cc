#include "transport/ucx_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace cgx::transport {
namespace {

int option_of(int socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

bool is_tcp(int socket) {
  return option_of(socket, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

bool is_listening(int socket) {
  return option_of(socket, SOL_SOCKET, SO_ACCEPTCONN) == 1;
}

// 0 where there is none. `name` is getsockname or getpeername.
uint16_t port_of(int socket, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

uint16_t own_port(int socket) {
  return port_of(socket, [](int s, sockaddr* a, socklen_t* n) { return ::getsockname(s, a, n); });
}

uint16_t peer_port(int socket) {
  return port_of(socket, [](int s, sockaddr* a, socklen_t* n) { return ::getpeername(s, a, n); });
}

bool contains(const Ports& ports, uint16_t port) {
  return port != 0 && std::find(ports.begin(), ports.end(), port) != ports.end();
}

template <typename Visit>
void for_each_tcp_socket(Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0') continue;
    if (is_tcp(static_cast<int>(number))) visit(static_cast<int>(number));
  }
}

}  // namespace

std::set<int> listening_sockets() {
  std::set<int> sockets;
  for_each_tcp_socket([&](int socket) {
    if (is_listening(socket)) sockets.insert(socket);
  });
  return sockets;
}

Ports ports_of(const std::set<int>& sockets) {
  Ports ports;
  for (const int socket : sockets) ports.push_back(own_port(socket));
  return ports;
}

Status set_congestion(const std::string& algorithm, const Ports& own, const Ports& remote) {
  int error = 0;
  for_each_tcp_socket([&](int socket) {
    if (!contains(own, own_port(socket)) && !contains(remote, peer_port(socket))) return;
    if (::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(),
                     static_cast<socklen_t>(algorithm.size())) != 0) {
      error = errno;
    }
  });
  if (error == 0) return {};
  return invalid_argument("congestion control \"" + algorithm + "\": " + std::strerror(error) +
                          (error == EPERM ? " (needs CAP_NET_ADMIN, or an algorithm listed in "
                                            "net.ipv4.tcp_allowed_congestion_control)"
                                          : ""));
}

}  // namespace cgx::transport
