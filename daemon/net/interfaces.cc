#include "daemon/net/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

namespace cgx::daemon {
namespace {

std::string numeric(const sockaddr* address) {
  const bool ipv4 = address->sa_family == AF_INET;
  const socklen_t bytes = ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char host[NI_MAXHOST] = "";
  ::getnameinfo(address, bytes, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
      if (each->ifa_addr->sa_family != family) continue;
      const std::string host = numeric(each->ifa_addr);
      if (host.find('%') == std::string::npos) found.push_back({each->ifa_name, host});
    }
  }
  return found;
}

std::vector<InterfaceAddress> interface_addresses(const NetworkList& networks) {
  std::vector<InterfaceAddress> found = interface_addresses();
  std::erase_if(found, [&](const InterfaceAddress& each) { return !networks.contains(each.host); });
  return found;
}

Status check_listen(const std::string& host, const NetworkList& trusted) {
  if (host == "0.0.0.0" || host == "::" || trusted.contains(host)) return {};
  return invalid_argument("mesh.listen: " + host + " is in none of the networks of the other " +
                          "machines (" + trusted.to_string() +
                          "): give an address in them, or set mesh.network alone");
}

Status in_no_network(const std::string& key, const NetworkList& networks) {
  std::string own;
  for (const auto& [interface, host] : interface_addresses()) {
    own += (own.empty() ? "" : ", ") + host + " (" + interface + ")";
  }
  return invalid_argument(key + ": no interface of this machine has an address in " +
                          networks.to_string() + "; its addresses are " + own);
}

}  // namespace cgx::daemon
