// Words of the configuration as options of transports: what the makers of transports share.
// Thread rule: as transports.h.
#pragma once

#include <charconv>
#include <string>
#include <vector>

#include "daemon/data/data_agent.h"
#include "daemon/net/interfaces.h"
#include "daemon/net/networks.h"
#include "proto/messages/config.pb.h"
#include "transport/address_filter.h"

namespace cgx::daemon {

// A maker for each transport, in transport_<name>.cc.
#define X(name, summary) Result<TransportFactory> make_##name(const v1::Config& config);
#include "transport/transports.def"
#undef X

Result<NetworkList> trusted_networks(const v1::Config& config);
std::vector<transport::AddressRange> ranges_of(const NetworkList& trusted);
std::string device_names(const v1::Transport& words);  // "eth0, eth1"
// UCX is told to use nothing else.
bool only_tcp(const v1::Transport& words);

// This machine's addresses inside the trusted networks, on the configured devices.
Result<std::vector<InterfaceAddress>> own_addresses(const v1::Config& config);

// "20000-20100", "20000" or "0"
template <typename Options>
void fill_ports(const std::string& text, Options& options) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, options.port_first);
  options.port_last = options.port_first;
  if (first.ptr != end) std::from_chars(first.ptr + 1, end, options.port_last);
}

}  // namespace cgx::daemon
