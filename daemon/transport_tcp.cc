// tcp: where it listens, and its options.
#include <algorithm>

#include "daemon/base/open_files.h"
#include "daemon/transport_options.h"
#include "daemon/transports.h"
#include "transport/tcp.h"

namespace cgx::daemon {

std::vector<std::string> hosts_of(const v1::Config& config,
                                  const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> hosts;
  for (const InterfaceAddress& each : addresses) hosts.push_back(each.host);
  const std::string listen = host_of(config.mesh().listen());
  std::stable_partition(hosts.begin(), hosts.end(),
                        [&](const std::string& each) { return each == listen; });
  hosts.resize(std::min(hosts.size(), transport::kTcpHostsMax));
  return hosts;
}

Result<TransportFactory> make_tcp(const v1::Config& config) {
  const v1::Transport& words = config.transport();
  transport::TcpOptions options;
  CGX_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> addresses, own_addresses(config));
  if (!words.devices().empty() && addresses.size() > transport::kTcpHostsMax) {
    return invalid_argument(
        "transport.devices: " + device_names(words) + " have " + std::to_string(addresses.size()) +
        " addresses in the trusted networks; " + std::to_string(transport::kTcpHostsMax) +
        " are possible, so name fewer devices");
  }
  options.hosts = hosts_of(config, addresses);
  fill_ports(words.ports(), options);
  options.frame_bytes = static_cast<uint32_t>(words.segment_bytes());
  CGX_ASSIGN_OR_RETURN(options.seal, transport::find_tcp_seal(words.seal()));
  options.congestion = words.congestion_control();
  options.handshake_ms = static_cast<uint32_t>(config.timeouts().handshake_ms());
  options.lost_ms = static_cast<uint32_t>(config.timeouts().peer_lost_ms());
  CGX_ASSIGN_OR_RETURN(const NetworkList trusted, trusted_networks(config));
  options.admitted = ranges_of(trusted);
  options.admits = [trusted](const std::string& host) { return trusted.contains(host); };
  options.few_left = in_last_half_of_reserve;
  return TransportFactory([options](transport::Events& events) {
    return transport::make_tcp_transport(options, events);
  });
}

}  // namespace cgx::daemon
