#include "daemon/transports.h"

#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "daemon/base/open_files.h"
#include "daemon/net/interfaces.h"
#include "daemon/net/networks.h"
#include "transport/tcp.h"
#include "transport/ucx.h"

namespace cgx::daemon {
namespace {

constexpr std::string_view kAuto = "auto";

// "20000-20100", "20000" or "0"
template <typename Options>
void fill_ports(const std::string& text, Options& options) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, options.port_first);
  options.port_last = options.port_first;
  if (first.ptr != end) std::from_chars(first.ptr + 1, end, options.port_last);
}

Result<NetworkList> trusted_networks(const v1::Config& config) {
  return NetworkList::parse(
      {config.mesh().trusted_networks().begin(), config.mesh().trusted_networks().end()});
}

std::string names(const google::protobuf::RepeatedPtrField<std::string>& devices) {
  std::string text;
  for (const std::string& each : devices) text += (text.empty() ? "" : ", ") + each;
  return text;
}

// Loopback leads other machines to themselves: it is for daemons that meet there.
void leave_out_loopback(const v1::Config& config, std::vector<InterfaceAddress>& addresses) {
  const NetworkList loopback = NetworkList::loopback();
  const auto is_near = [&](const InterfaceAddress& each) { return loopback.contains(each.host); };
  const bool meets_there = loopback.contains(host_of(config.mesh().listen()));
  const bool nothing_else = std::all_of(addresses.begin(), addresses.end(), is_near);
  if (!meets_there && !nothing_else) std::erase_if(addresses, is_near);
}

// This machine's addresses inside the trusted networks, on the configured devices.
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
  return invalid_argument("transport.devices: none of " + names(devices) + " has an address in " +
                          trusted.to_string() + " (mesh.network, mesh.trusted_networks)");
}

}  // namespace

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

namespace {

std::vector<transport::AddressRange> ranges_of(const NetworkList& trusted) {
  std::vector<transport::AddressRange> ranges;
  for (const auto& each : trusted.networks()) ranges.push_back({each.address, each.bits});
  return ranges;
}

bool only_tcp(const v1::Transport& words) {
  return words.ucx_transports_size() == 1 && words.ucx_transports(0) == "tcp";
}

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

namespace {

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

Result<TransportFactory> make_tcp(const v1::Config& config) {
  const v1::Transport& words = config.transport();
  transport::TcpOptions options;
  CGX_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> addresses, own_addresses(config));
  if (!words.devices().empty() && addresses.size() > transport::kTcpHostsMax) {
    return invalid_argument(
        "transport.devices: " + names(words.devices()) + " have " +
        std::to_string(addresses.size()) + " addresses in the trusted networks; " +
        std::to_string(transport::kTcpHostsMax) + " are possible, so name fewer devices");
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

struct Row {
  std::string_view name;
  Result<TransportFactory> (*make)(const v1::Config&);
};
#define X(name, summary) {#name, &make_##name},
constexpr Row kRows[] = {
#include "transport/transports.def"
};
#undef X

const Row* find_row(std::string_view name) {
  const Row* const found = std::find_if(std::begin(kRows), std::end(kRows),
                                        [&](const Row& row) { return row.name == name; });
  return found == std::end(kRows) ? nullptr : found;
}

}  // namespace

// UCX where RDMA is configured: nothing else speaks it. Between sockets tcp, which lets no stranger
// in and is as fast.
std::string transport_name(const v1::Transport& words) {
  if (words.name() != kAuto) return words.name();
  return only_tcp(words) ? "tcp" : "ucx";
}

std::string transport_names() {
  std::string names(kAuto);
  for (const Row& row : kRows) names += ", " + std::string(row.name);
  return names;
}

Status check_transport(std::string_view name) {
  if (name == kAuto || find_row(name) != nullptr) return {};
  return invalid_argument("\"" + std::string(name) + "\" is no transport: " + transport_names());
}

Result<TransportChoice> choose_transport(const v1::Config& config) {
  const std::string name = transport_name(config.transport());
  CGX_RETURN_IF_ERROR(check_transport(name));
  TransportChoice choice{name, {}};
  CGX_ASSIGN_OR_RETURN(choice.make, find_row(name)->make(config));
  return choice;
}

}  // namespace cgx::daemon
