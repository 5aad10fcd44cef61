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

bool contains(const SocketAddresses& addresses, const std::string& address) {
  return !address.empty() &&
         std::find(addresses.begin(), addresses.end(), address) != addresses.end();
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

bool is_listening(int socket) {
  return option_of(socket, SOL_SOCKET, SO_ACCEPTCONN) == 1;
}

std::set<int> listening_sockets() {
  std::set<int> sockets;
  for_each_tcp_socket([&](int socket) {
    if (is_listening(socket)) sockets.insert(socket);
  });
  return sockets;
}

SocketAddresses addresses_of(const std::set<int>& sockets) {
  SocketAddresses addresses;
  for (const int socket : sockets) addresses.push_back(own_address(socket).text());
  return addresses;
}

Status set_socket_options(const SocketOptions& options, const SocketAddresses& own,
                          const SocketAddresses& remote) {
  int error = 0;
  for_each_tcp_socket([&](int socket) {
    if (!contains(own, own_address(socket).text()) &&
        !contains(remote, peer_address(socket).text()))
      return;
    if (const int failed = set_options(socket, options)) error = failed;
  });
  return error == 0 ? Status() : options_refused(options, error);
}

Status admit_only(const std::set<int>& listeners, std::span<const AddressRange> ranges) {
  for (const int listener : listeners) {
    if (const int error = admit_only(listener, ranges)) {
      return {StatusCode::kUNAVAILABLE,
              "the port " + own_address(listener).text() +
                  " cannot be closed to other networks: " + std::strerror(error)};
    }
  }
  const SocketAddresses own = addresses_of(listeners);
  for_each_tcp_socket([&](int socket) {
    if (peer_address(socket).bytes == 0 || !contains(own, own_address(socket).text())) return;
    ::shutdown(socket, SHUT_RDWR);
  });
  return {};
}

std::string host_of(const std::string& address) {
  return address.substr(0, address.find(' '));
}

void cut_connections(const SocketAddresses& own, const SocketAddresses& remote,
                     const std::string& remote_host) {
  for_each_tcp_socket([&](int socket) {
    const std::string peer = peer_address(socket).text();
    if (peer.empty()) return;  // a listener
    const bool from_there =
        host_of(peer) == remote_host && contains(own, own_address(socket).text());
    if (from_there || contains(remote, peer)) ::shutdown(socket, SHUT_RDWR);
  });
}

}  // namespace cgx::transport
