#include "daemon/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

namespace cgx::daemon {
namespace {

std::string text_of(const sockaddr& address) {
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  } else if (address.sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  } else {
    return {};
  }
  char text[INET6_ADDRSTRLEN] = {};
  return inet_ntop(address.sa_family, bytes, text, sizeof text) == nullptr ? "" : text;
}

}  // namespace

std::vector<std::string> interfaces_inside(const NetworkList& networks) {
  std::vector<std::string> names;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return names;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = text_of(*each->ifa_addr);
    if (address.empty() || !networks.contains(address)) continue;
    const bool known = std::find(names.begin(), names.end(), each->ifa_name) != names.end();
    if (!known) names.emplace_back(each->ifa_name);
  }
  return names;
}

}  // namespace cgx::daemon
