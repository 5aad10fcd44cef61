#include "daemon/tcp_listener.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

namespace cgx::daemon {
namespace {

constexpr int kBacklog = 256;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
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

std::string join(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// Numeric addresses of the interfaces that are up, IPv4 first; link-local IPv6 needs a scope and is
// left out.
std::vector<std::string> interface_hosts() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeAddresses> list(first);
  std::vector<std::string> ipv4, ipv6;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || !(each->ifa_flags & IFF_UP)) continue;
    if (each->ifa_addr->sa_family == AF_INET) {
      ipv4.push_back(to_text(each->ifa_addr, sizeof(sockaddr_in)).host);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const std::string host = to_text(each->ifa_addr, sizeof(sockaddr_in6)).host;
      if (host.find('%') == std::string::npos) ipv6.push_back(host);
    }
  }
  ipv4.insert(ipv4.end(), ipv6.begin(), ipv6.end());
  return ipv4;
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
  if (!listener.fd) return errno_status(StatusCode::kUNAVAILABLE, what);
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
    return {join(listener.host, listener.port)};
  }
  const NetworkList loopback = NetworkList::loopback();
  std::vector<std::string> near, far;
  for (const std::string& host : interface_hosts()) {
    if (listener.host == "0.0.0.0" && host.find(':') != std::string::npos) continue;
    if (!networks.contains(host)) continue;
    (loopback.contains(host) ? near : far).push_back(join(host, listener.port));
  }
  return far.empty() ? near : far;
}

}  // namespace cgx::daemon
