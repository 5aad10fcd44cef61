// UCX: which devices it may use, and its options.
#include <net/if.h>

#include <algorithm>
#include <filesystem>

#include "daemon/transport_options.h"
#include "daemon/transports.h"
#include "transport/ucx.h"

namespace cgx::daemon {
namespace {

bool also_tcp(const v1::Transport& words) {
  const auto& names = words.ucx_transports();
  return std::find(names.begin(), names.end(), "tcp") != names.end();
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator each(folder, error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
    names.push_back(each->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "mlx5_0:1", as UCX calls them; or those of the configuration that are no interfaces of TCP's.
std::vector<std::string> rdma_devices(const v1::Transport& words, const std::string& folder) {
  std::vector<std::string> devices;
  for (const std::string& each : words.devices()) {
    if (::if_nametoindex(each.c_str()) == 0) devices.push_back(each);
  }
  if (words.devices_size() > 0) return devices;
  for (const std::string& device : names_in(folder)) {
    for (const std::string& port : names_in(folder + "/" + device + "/ports")) {
      devices.push_back(device + ":" + port);
    }
  }
  return devices;
}

}  // namespace

// An RDMA device has no address here that would tell where it leads.
Result<std::vector<std::string>> ucx_devices(const v1::Config& config, const std::string& rdma) {
  const v1::Transport& words = config.transport();
  std::vector<std::string> devices;
  if (!also_tcp(words)) return std::vector(words.devices().begin(), words.devices().end());
  if (!only_tcp(words)) devices = rdma_devices(words, rdma);
  const auto addresses = own_addresses(config);
  if (!addresses.ok() && devices.empty()) return addresses.status();
  if (!addresses.ok()) return devices;
  for (const InterfaceAddress& each : *addresses) {
    const bool known = std::find(devices.begin(), devices.end(), each.interface) != devices.end();
    if (!known) devices.push_back(each.interface);
  }
  return devices;
}

Result<TransportFactory> make_ucx(const v1::Config& config) {
  const v1::Transport& words = config.transport();
  transport::UcxOptions options;
  options.transports = {words.ucx_transports().begin(), words.ucx_transports().end()};
  CGX_ASSIGN_OR_RETURN(options.devices, ucx_devices(config));
  options.frame_bytes = static_cast<uint32_t>(words.segment_bytes());
  options.congestion = words.congestion_control();
  fill_ports(words.ports(), options);
  CGX_ASSIGN_OR_RETURN(const NetworkList trusted, trusted_networks(config));
  options.admitted = ranges_of(trusted);
  return TransportFactory([options](transport::Events& events) {
    return transport::make_ucx_transport(options, events);
  });
}

}  // namespace cgx::daemon
