// Networks in CIDR notation ("10.0.0.0/8", "fd00::/8") and whether an address lies in one.
// Thread rule: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::daemon {

class NetworkList {
 public:
  using Address = std::array<uint8_t, 16>;  // IPv4 as ::ffff:a.b.c.d
  struct Network {
    Address address{};
    unsigned bits = 0;  // that all of its addresses begin with
  };

  static Result<NetworkList> parse(const std::vector<std::string>& networks);
  static NetworkList loopback();

  // `host`: a numeric address without port; a name is in no network.
  bool contains(const std::string& host) const;
  const std::vector<Network>& networks() const { return networks_; }
  std::string to_string() const;

 private:
  static bool parse_address(const std::string& text, Address& address, bool& ipv4);
  static Status parse_network(const std::string& text, Network& network);

  std::vector<Network> networks_;
  std::string text_;
};

// "10.0.0.3:7701" -> "10.0.0.3", "[fd00::1]:7701" -> "fd00::1"; empty: no such form.
std::string host_of(std::string_view address);
std::string without_brackets(std::string_view host);  // "[::1]" is "::1"

// The other way round, for a numeric host.
std::string address_of(const std::string& host, uint16_t port);

}  // namespace cgx::daemon
