#include "client/cluster.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>

#include "proto/wire/unique_fd.h"

namespace cgx::client {
namespace {

constexpr uint16_t kDiscardPort = 9;  // nothing is sent there

struct Address {
  int family = AF_UNSPEC;
  std::array<uint8_t, 16> bytes{};  // the first 4 for IPv4
  size_t size() const { return family == AF_INET ? 4 : 16; }
  friend bool operator==(const Address&, const Address&) = default;
};

std::optional<Address> address_of(const sockaddr* from) {
  Address address;
  if (from == nullptr) return std::nullopt;
  address.family = from->sa_family;
  if (from->sa_family == AF_INET) {
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
  } else if (from->sa_family == AF_INET6) {
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
  } else {
    return std::nullopt;
  }
  return address;
}

bool is_loopback(const Address& address) {
  if (address.family == AF_INET) return address.bytes[0] == 127;
  in6_addr six{};
  std::memcpy(&six, address.bytes.data(), sizeof six);
  return IN6_IS_ADDR_LOOPBACK(&six);
}

// Connecting a datagram socket sends nothing and chooses the address.
std::optional<Address> own_address_towards(const addrinfo& host) {
  const UniqueFd fd(::socket(host.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* const plain = reinterpret_cast<sockaddr*>(&own);
  const bool chosen = fd.valid() && ::connect(fd.get(), host.ai_addr, host.ai_addrlen) == 0 &&
                      ::getsockname(fd.get(), plain, &length) == 0;
  return chosen ? address_of(plain) : std::nullopt;
}

std::optional<Address> own_address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), std::to_string(kDiscardPort).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  std::optional<Address> own;
  for (const addrinfo* one = found; one != nullptr && !own; one = one->ai_next) {
    own = own_address_towards(*one);
  }
  ::freeaddrinfo(found);
  return own;
}

std::string network_text(const Address& own, const Address& mask) {
  Address network = own;
  int bits = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    network.bytes[i] &= mask.bytes[i];
    bits += std::popcount(mask.bytes[i]);
  }
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(network.family, network.bytes.data(), text, sizeof text);
  return std::string(text) + "/" + std::to_string(bits);
}

std::string network_of(const Address& own) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const std::optional<Address> mask = address_of(one->ifa_netmask);
    if (mask && address_of(one->ifa_addr) == own) return network_text(own, *mask);
  }
  return "";
}

}  // namespace

bool several_machines(const LauncherWords& words) {
  if (words.machines != 0) return words.machines > 1;
  if (words.local_ranks != 0) return words.ranks > words.local_ranks;
  return words.ranks != 1 && !words.host.empty();
}

bool some_elsewhere(const LauncherWords& words, uint32_t ranks) {
  if (words.local_ranks != 0) return ranks > words.local_ranks && ranks <= words.ranks;
  return words.step_machines > 1 && ranks == words.step_ranks;
}

std::string cluster_network(const LauncherWords& words) {
  if (!words.network.empty()) return words.network;
  if (!several_machines(words) || words.host.empty()) return "";
  const std::optional<Address> own = own_address_towards(words.host);
  return own && !is_loopback(*own) ? network_of(*own) : "";
}

std::string host_of_uri(const std::string& uri) {
  constexpr std::string_view kScheme = "tcp://";
  const size_t at = uri.find(kScheme);
  if (at == std::string::npos) return "";
  const size_t begin = at + kScheme.size();
  return uri.substr(begin, uri.find_first_of(",:", begin) - begin);
}

}  // namespace cgx::client
