#include "transport/tcp_sockets.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // not netinet/tcp.h, whose tcp_info ends early
#include <netdb.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cgx::transport {
namespace {

constexpr int kBacklog = 1024;

Status failed(const std::string& what, int error) {
  return {StatusCode::kUNAVAILABLE, what + ": " + error_text(error)};
}

Result<Socket> open_socket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) return failed("a TCP socket", errno);
  return socket;
}

tcp_info info_of(int socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  (void)::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return info;
}

// 0 or errno.
int listen_on(int socket, const SocketAddress& address) {
  const bool listens =
      ::bind(socket, address.get(), address.bytes) == 0 && ::listen(socket, kBacklog) == 0;
  return listens ? 0 : errno;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string error_text(int error) {
  const bool lacks_descriptors = error == EMFILE || error == ENFILE;
  return lacks_descriptors ? "this daemon has no descriptor left (ulimit -n)"
                           : std::strerror(error);
}

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

Status options_refused(const SocketOptions& options, int error) {
  return invalid_argument("TCP_USER_TIMEOUT " + std::to_string(options.stalled_ms) +
                          " ms, congestion control \"" + options.congestion +
                          "\": " + std::strerror(error) +
                          (error == EPERM ? " (needs CAP_NET_ADMIN, or an algorithm listed in "
                                            "net.ipv4.tcp_allowed_congestion_control)"
                                          : ""));
}

Result<SocketAddress> SocketAddress::parse(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return invalid_argument("\"" + host + "\" is no numeric address");
  }
  SocketAddress address;
  address.bytes = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::string SocketAddress::host() const {
  const std::string both = text();
  return both.substr(0, both.find(' '));
}

std::string SocketAddress::text() const {
  char host[INET6_ADDRSTRLEN] = {}, port[8] = {};
  if (bytes == 0 || ::getnameinfo(get(), bytes, host, sizeof host, port, sizeof port,
                                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return std::string(host) + " " + port;
}

SocketAddress own_address(int socket) {
  SocketAddress address{.bytes = sizeof(sockaddr_storage)};
  auto* where = reinterpret_cast<sockaddr*>(&address.storage);
  if (::getsockname(socket, where, &address.bytes) != 0) address.bytes = 0;
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address{.bytes = sizeof(sockaddr_storage)};
  auto* where = reinterpret_cast<sockaddr*>(&address.storage);
  if (::getpeername(socket, where, &address.bytes) != 0) address.bytes = 0;
  return address;
}

// What it accepts inherits its options.
Result<Socket> listen_at(const std::string& host, uint16_t port_first, uint16_t port_last,
                         const SocketOptions& options) {
  int error = 0;
  for (uint32_t port = port_first; port <= port_last; ++port) {
    CGX_ASSIGN_OR_RETURN(const SocketAddress address,
                         SocketAddress::parse(host, static_cast<uint16_t>(port)));
    CGX_ASSIGN_OR_RETURN(Socket socket, open_socket(address.storage.ss_family));
    const int one = 1;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    error = set_options(socket.get(), options);
    if (error != 0) return options_refused(options, error);
    error = listen_on(socket.get(), address);
    if (error == 0) return socket;
  }
  return failed("cannot listen on " + host + ", ports " + std::to_string(port_first) + " to " +
                    std::to_string(port_last),
                error);
}

Result<Socket> dial(const SocketAddress& to, const SocketOptions& options) {
  CGX_ASSIGN_OR_RETURN(Socket socket, open_socket(to.storage.ss_family));
  const int one = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const int refused = set_options(socket.get(), options);
  if (refused != 0) return options_refused(options, refused);
  if (::connect(socket.get(), to.get(), to.bytes) == 0 || errno == EINPROGRESS) return socket;
  return failed(to.text(), errno);
}

int pending_error(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

uint32_t round_trip_ms(int socket) {
  return info_of(socket).tcpi_rtt / 1000 + 1;
}

PathState path_of(int socket) {
  const tcp_info info = info_of(socket);
  const uint32_t least_us = std::min(info.tcpi_rtt, info.tcpi_min_rtt);
  return {.came = info.tcpi_data_segs_in,
          .arrived = info.tcpi_delivered,
          .queued_ms = (info.tcpi_rtt - least_us) / 1000};
}

int bytes_on_their_way(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace cgx::transport
