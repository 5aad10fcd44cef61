#include "daemon/net/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "daemon/net/interfaces.h"

namespace cgx::daemon {
namespace {

constexpr int kBacklog = 256;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

HostPort to_text(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "0";
  ::getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, static_cast<uint16_t>(std::stoul(port))};
}

Status bind_and_listen(int fd, const addrinfo& address, const std::string& what) {
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0)
    return {};
  return errno_status(StatusCode::kUNAVAILABLE, what);
}

}  // namespace

Result<TcpListener> TcpListener::open(const std::string& address, const std::string& key) {
  const std::string what = key + ": cannot listen on " + address;
  const std::string host = host_of(address);
  if (host.empty()) return invalid_argument(what + ": write it as host:port");
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &first);
  if (error != 0) return invalid_argument(what + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, FreeAddresses> list(first);
  TcpListener listener;
  listener.fd = UniqueFd(::socket(first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool everywhere = host == "::";  // machines without IPv6 have IPv4 for that
  if (!listener.fd && errno == EAFNOSUPPORT && everywhere) return open("0.0.0.0:" + port, key);
  if (!listener.fd) return errno_status(StatusCode::kUNAVAILABLE, what);
  const int off = 0;
  if (everywhere) ::setsockopt(listener.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  CGX_RETURN_IF_ERROR(bind_and_listen(listener.fd.get(), *first, what));
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  ::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound), &bytes);
  const HostPort text = to_text(reinterpret_cast<const sockaddr*>(&bound), bytes);
  listener.host = text.host;
  listener.port = text.port;
  return listener;
}

std::vector<std::string> reachable_addresses(const TcpListener& listener,
                                             const NetworkList& networks) {
  if (listener.host != "0.0.0.0" && listener.host != "::") {
    return {address_of(listener.host, listener.port)};
  }
  const NetworkList loopback = NetworkList::loopback();
  std::vector<std::string> near, far;
  for (const auto& [interface, host] : interface_addresses(networks)) {
    if (listener.host == "0.0.0.0" && host.find(':') != std::string::npos) continue;
    (loopback.contains(host) ? near : far).push_back(address_of(host, listener.port));
  }
  return far.empty() ? near : far;
}

}  // namespace cgx::daemon
