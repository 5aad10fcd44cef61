#include "daemon/net/networks.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace cgx::daemon {

bool NetworkList::parse_address(const std::string& text, Address& address, bool& ipv4) {
  ipv4 = ::inet_pton(AF_INET, text.c_str(), address.data() + 12) == 1;
  if (!ipv4) return ::inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
  std::fill_n(address.begin(), 10, 0);
  address[10] = address[11] = 0xff;
  return true;
}

Status NetworkList::parse_network(const std::string& text, Network& network) {
  const size_t slash = text.find('/');
  bool ipv4 = false;
  bool good = parse_address(text.substr(0, slash), network.address, ipv4);
  const unsigned width = ipv4 ? 32 : 128;
  unsigned bits = width;
  if (slash != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + slash + 1, end, bits);
    good = good && parsed.ec == std::errc() && parsed.ptr == end && bits <= width;
  }
  network.bits = bits + (128 - width);
  if (good) return {};
  return invalid_argument("'" + text + "' is no network; write it as 10.0.0.0/8 or fd00::/8");
}

Result<NetworkList> NetworkList::parse(const std::vector<std::string>& networks) {
  NetworkList list;
  for (const std::string& text : networks) {
    Network network;
    CGX_RETURN_IF_ERROR(parse_network(text, network));
    list.networks_.push_back(network);
    list.text_ += (list.text_.empty() ? "" : ", ") + text;
  }
  return list;
}

NetworkList NetworkList::loopback() {
  return parse({"127.0.0.0/8", "::1/128"}).value();
}

bool NetworkList::contains(const std::string& host) const {
  Address address{};
  bool ipv4 = false;
  if (!parse_address(host, address, ipv4)) return false;
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    for (unsigned bit = 0; bit < network.bits; ++bit) {
      const unsigned mask = 0x80u >> (bit % 8);
      if ((address[bit / 8] ^ network.address[bit / 8]) & mask) return false;
    }
    return true;
  });
}

std::string NetworkList::to_string() const {
  return text_;
}

std::string address_of(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string host_of(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {};
  return without_brackets(address.substr(0, colon));
}

std::string without_brackets(std::string_view host) {
  const bool enclosed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return std::string(enclosed ? host.substr(1, host.size() - 2) : host);
}

}  // namespace cgx::daemon
