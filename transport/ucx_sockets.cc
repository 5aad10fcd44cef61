#include "transport/ucx_sockets.h"

#include <dirent.h>
#include <netdb.h>
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

// Empty where there is none. `name` is getsockname or getpeername.
std::string address_of(int socket, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  char host[INET6_ADDRSTRLEN] = {}, port[8] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return std::string(host) + " " + port;
}

std::string own_address(int socket) {
  return address_of(socket,
                    [](int s, sockaddr* a, socklen_t* n) { return ::getsockname(s, a, n); });
}

std::string peer_address(int socket) {
  return address_of(socket,
                    [](int s, sockaddr* a, socklen_t* n) { return ::getpeername(s, a, n); });
}

bool contains(const SocketAddresses& addresses, const std::string& address) {
  return !address.empty() &&
         std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

// 0 or errno.
int set_options(int socket, const SocketOptions& options) {
  if (options.stalled_ms > 0 && ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
                                             &options.stalled_ms, sizeof options.stalled_ms) != 0) {
    return errno;
  }
  if (!options.congestion.empty() &&
      ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, options.congestion.data(),
                   static_cast<socklen_t>(options.congestion.size())) != 0) {
    return errno;
  }
  return 0;
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

SocketAddresses addresses_of(const std::set<int>& sockets) {
  SocketAddresses addresses;
  for (const int socket : sockets) addresses.push_back(own_address(socket));
  return addresses;
}

Status set_socket_options(const SocketOptions& options, const SocketAddresses& own,
                          const SocketAddresses& remote) {
  int error = 0;
  for_each_tcp_socket([&](int socket) {
    if (!contains(own, own_address(socket)) && !contains(remote, peer_address(socket))) return;
    if (const int failed = set_options(socket, options)) error = failed;
  });
  if (error == 0) return {};
  return invalid_argument("TCP_USER_TIMEOUT " + std::to_string(options.stalled_ms) +
                          " ms, congestion control \"" + options.congestion +
                          "\": " + std::strerror(error) +
                          (error == EPERM ? " (needs CAP_NET_ADMIN, or an algorithm listed in "
                                            "net.ipv4.tcp_allowed_congestion_control)"
                                          : ""));
}

std::string host_of(const std::string& address) {
  return address.substr(0, address.find(' '));
}

void cut_connections(const SocketAddresses& own, const SocketAddresses& remote,
                     const std::string& remote_host) {
  for_each_tcp_socket([&](int socket) {
    const std::string peer = peer_address(socket);
    if (peer.empty()) return;  // a listener
    const bool from_there = host_of(peer) == remote_host && contains(own, own_address(socket));
    if (from_there || contains(remote, peer)) ::shutdown(socket, SHUT_RDWR);
  });
}

}  // namespace cgx::transport
