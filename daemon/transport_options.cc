#include "daemon/transport_options.h"

#include <algorithm>

namespace cgx::daemon {

Result<NetworkList> trusted_networks(const v1::Config& config) {
  return NetworkList::parse(
      {config.mesh().trusted_networks().begin(), config.mesh().trusted_networks().end()});
}

std::vector<transport::AddressRange> ranges_of(const NetworkList& trusted) {
  std::vector<transport::AddressRange> ranges;
  for (const auto& each : trusted.networks()) ranges.push_back({each.address, each.bits});
  return ranges;
}

std::string device_names(const v1::Transport& words) {
  std::string text;
  for (const std::string& each : words.devices()) text += (text.empty() ? "" : ", ") + each;
  return text;
}

bool only_tcp(const v1::Transport& words) {
  return words.ucx_transports_size() == 1 && words.ucx_transports(0) == "tcp";
}

namespace {

// Loopback leads other machines to themselves: it is for daemons that meet there.
void leave_out_loopback(const v1::Config& config, std::vector<InterfaceAddress>& addresses) {
  const NetworkList loopback = NetworkList::loopback();
  const auto is_near = [&](const InterfaceAddress& each) { return loopback.contains(each.host); };
  const bool meets_there = loopback.contains(host_of(config.mesh().listen()));
  const bool nothing_else = std::all_of(addresses.begin(), addresses.end(), is_near);
  if (!meets_there && !nothing_else) std::erase_if(addresses, is_near);
}

}  // namespace

Result<std::vector<InterfaceAddress>> own_addresses(const v1::Config& config) {
  CGX_ASSIGN_OR_RETURN(const NetworkList trusted, trusted_networks(config));
  std::vector<InterfaceAddress> addresses = interface_addresses(trusted);
  if (addresses.empty()) return in_no_network("mesh.trusted_networks", trusted);
  const auto& devices = config.transport().devices();
  std::erase_if(addresses, [&](const InterfaceAddress& each) {
    return !devices.empty() &&
           std::find(devices.begin(), devices.end(), each.interface) == devices.end();
  });
  if (devices.empty()) leave_out_loopback(config, addresses);
  if (!addresses.empty()) return addresses;
  return invalid_argument("transport.devices: none of " + device_names(config.transport()) +
                          " has an address in " + trusted.to_string() +
                          " (mesh.network, mesh.trusted_networks)");
}

}  // namespace cgx::daemon
