#include "daemon/options.h"

#include <pwd.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "config/config.h"
#include "daemon/base/clock.h"
#include "daemon/net/groups.h"
#include "daemon/net/interfaces.h"
#include "daemon/net/networks.h"
#include "daemon/net/reach.h"
#include "daemon/policy/policy_message.h"
#include "daemon/transports.h"
#include "proto/wire/frame.h"

#ifndef CGX_VERSION
#define CGX_VERSION "unknown"
#endif

namespace cgx::daemon {
namespace {

constexpr size_t kClusterKeyBytesMin = 16;

std::string user_name() {
  const passwd* const user = ::getpwuid(::geteuid());
  return user != nullptr ? user->pw_name : std::to_string(::geteuid());
}

Result<std::string> read_file(const std::string& path, const char* key) {
  Result<std::string> text = config::read_file(path);
  const std::string named = std::string(key) + ": ";
  if (!text.ok()) {
    return invalid_argument(named + "user " + user_name() + " " + text.status().message());
  }
  if (text->empty()) return invalid_argument(named + path + " is empty");
  return text;
}

Result<std::string> cluster_key(const v1::Mesh& mesh) {
  if (mesh.key_file().empty()) return mesh.cluster_key();
  CGX_ASSIGN_OR_RETURN(std::string key, read_file(mesh.key_file(), "mesh.key_file"));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.size() >= kClusterKeyBytesMin) return key;
  return invalid_argument("mesh.key_file: " + mesh.key_file() + " holds " +
                          std::to_string(key.size()) + " bytes, at least " +
                          std::to_string(kClusterKeyBytesMin) + " are needed");
}

Result<MeshTls> mesh_tls(const v1::Tls& config) {
  MeshTls tls;
  if (config.ca_file().empty()) return tls;
  CGX_ASSIGN_OR_RETURN(tls.authority, read_file(config.ca_file(), "mesh.tls.ca_file"));
  CGX_ASSIGN_OR_RETURN(tls.certificate,
                       read_file(config.certificate_file(), "mesh.tls.certificate_file"));
  CGX_ASSIGN_OR_RETURN(tls.key, read_file(config.key_file(), "mesh.tls.key_file"));
  return tls;
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// What its keys owe each other; an error names the key as the file has it.
Result<CheckedPolicy> checked_policy(const v1::Policy& policy) {
  Result<CheckedPolicy> checked = check_policy(policy);
  if (checked.ok()) return checked;
  const std::string text = checked.status().message();
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  const bool has_key = end != std::string::npos && text.compare(end, 2, ": ") == 0;
  return Status(checked.status().code(), (has_key ? "policy." : "policy: ") + text);
}

scheduler::Timeouts timeouts(const v1::Timeouts& config) {
  scheduler::Timeouts timeouts;
#define X(name, ns) timeouts.name##_ns = config.name##_ms() * kMillisecond;
#include "scheduler/timeouts.def"
#undef X
  return timeouts;
}

std::string listed(const google::protobuf::RepeatedPtrField<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// What all machines of a job must have the same.
AgreedKeys agreed_keys(const v1::Config& config) {
  const v1::Transport& words = config.transport();
  const std::string transport = transport_name(words);
  AgreedKeys keys = {{"version", version_text()},
                     {"mesh protocol", std::to_string(kMeshVersion)},
                     {"frame format", std::to_string(wire::kFrameVersion)},
                     {"transport.name", transport},
                     {"transport.segment_bytes", std::to_string(words.segment_bytes())}};
  if (transport == "tcp") keys.emplace_back("transport.seal", words.seal());
  if (transport == "ucx") {
    keys.emplace_back("transport.ucx_transports", listed(words.ucx_transports()));
  }
  return keys;
}

std::vector<uint16_t> other_ports(const v1::Config& config) {
  std::vector<uint16_t> ports;
  if (config.metrics().port() != 0) {
    ports.push_back(static_cast<uint16_t>(config.metrics().port()));
  }
  const std::string& control = config.control().listen();
  const size_t colon = control.rfind(':');
  if (colon != std::string::npos) {
    ports.push_back(static_cast<uint16_t>(std::strtoul(control.c_str() + colon + 1, nullptr, 10)));
  }
  return ports;
}

// The machine's memory, where the operator names no limit.
uint64_t shared_bytes(const v1::Limits& limits) {
  struct sysinfo machine {};
  if (limits.shared_bytes() != 0 || ::sysinfo(&machine) != 0) {
    return limits.shared_bytes() != 0 ? limits.shared_bytes() : UINT64_MAX;
  }
  return (machine.totalram + machine.totalswap) * machine.mem_unit;
}

Status fill_ipc(const v1::Config& config, IpcOptions& ipc) {
  ipc.socket.path = config.client().socket();
  CGX_ASSIGN_OR_RETURN(ipc.socket.mode, socket_mode(config.client().socket_mode()));
  ipc.socket.group_key = "client.socket_group";
  CGX_ASSIGN_OR_RETURN(ipc.socket.group,
                       find_group(ipc.socket.group_key, config.client().socket_group()));
  ipc.handshake_ns = config.timeouts().handshake_ms() * kMillisecond;
  ipc.sessions_max = config.limits().sessions();
  ipc.arena_bytes_max = config.limits().arena_bytes();
  ipc.shared_bytes_max = shared_bytes(config.limits());
  ipc.gpu_workers_max = config.limits().gpu_workers();
  return {};
}

}  // namespace

const char* version_text() {
  return "cgxd " CGX_VERSION;
}
const char* version_number() {
  return CGX_VERSION;
}

Result<mode_t> socket_mode(const std::string& text) {
  unsigned mode = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, mode, 8);
  if (parsed.ec == std::errc() && parsed.ptr == end && mode <= 0777) return mode_t{mode};
  return invalid_argument("'" + text + "' are no permission bits; write them as 0660");
}

Result<scheduler::Engine::Changes> changeable_options(const v1::Config& config) {
  CGX_ASSIGN_OR_RETURN(const CheckedPolicy policy, checked_policy(config.policy()));
  std::vector<scheduler::JobWeight> weights;
  for (const v1::JobShare& job : config.jobs()) weights.push_back({job.match(), job.weight()});
  CGX_ASSIGN_OR_RETURN(scheduler::JobWeights job_weights, scheduler::JobWeights::create(weights));
  return scheduler::Engine::Changes{.policy = policy.plain,
                                    .job_weights = std::move(job_weights),
                                    .timeouts = timeouts(config.timeouts()),
                                    .limits = {.sessions = config.limits().sessions(),
                                               .communicators = config.limits().communicators(),
                                               .tensors = config.limits().tensors(),
                                               .plan_bytes = config.limits().plan_bytes(),
                                               .links = config.limits().links(),
                                               .shared_bytes = shared_bytes(config.limits()),
                                               .weight = config.limits().weight()}};
}

// Brackets around an IPv4 address are taken in a configuration; nobody dials it so.
std::string as_dialed(const std::string& address) {
  const auto port = std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10);
  return address_of(host_of(address), static_cast<uint16_t>(port));
}

std::vector<NamedFile> secret_files(const v1::Config& config) {
  std::vector<NamedFile> files;
  const auto add = [&](const std::string& key, const std::string& path) {
    if (!path.empty()) files.push_back({key, path});
  };
  const auto add_tls = [&](const std::string& of, const v1::Tls& tls) {
    add(of + ".tls.ca_file", tls.ca_file());
    add(of + ".tls.certificate_file", tls.certificate_file());
    add(of + ".tls.key_file", tls.key_file());
  };
  add_tls("mesh", config.mesh().tls());
  add_tls("control", config.control().tls());
  add("mesh.key_file", config.mesh().key_file());
  return files;
}

Result<DaemonOptions> daemon_options(const v1::Config& config) {
  DaemonOptions options;
  options.name = host_name();
  options.version = version_text();
  options.lane = config.lane();
  CGX_RETURN_IF_ERROR(fill_ipc(config, options.ipc));
  CGX_ASSIGN_OR_RETURN(scheduler::Engine::Changes changeable, changeable_options(config));
  options.policy = std::move(changeable.policy);
  options.job_weights = std::move(changeable.job_weights);
  options.timeouts = changeable.timeouts;
  options.limits = changeable.limits;
  const uint64_t events = config.recorder().events();
  options.recorder_events = events == 0 ? 0 : std::bit_ceil(events);
  options.spin_ns = config.waiting().spin_us() * kMicrosecond;
  options.always_spin = config.waiting().always_spin();
  options.compute_threads = config.arithmetic().threads();
  options.mesh_listen = as_dialed(config.mesh().listen());
  for (const std::string& each : config.mesh().advertise()) {
    options.advertise.push_back(as_dialed(each));
  }
  options.trusted_networks = {config.mesh().trusted_networks().begin(),
                              config.mesh().trusted_networks().end()};
  CGX_ASSIGN_OR_RETURN(options.cluster_key, cluster_key(config.mesh()));
  CGX_ASSIGN_OR_RETURN(options.mesh_tls, mesh_tls(config.mesh().tls()));
  options.agreed = agreed_keys(config);
  options.other_ports = other_ports(config);
  options.look_at_own = own_listener_check;
  return options;
}

Status check_network(const v1::Config& config) {
  const v1::Mesh& mesh = config.mesh();
  v1::Mesh unchanged;
  config::fill_defaults(unchanged);
  const bool same =
      std::equal(mesh.trusted_networks().begin(), mesh.trusted_networks().end(),
                 unchanged.trusted_networks().begin(), unchanged.trusted_networks().end());
  if (mesh.network().empty() || same) return {};
  return invalid_argument("mesh.network: is set beside mesh.trusted_networks; keep one of them");
}

Status resolve_network(v1::Config& config) {
  v1::Mesh& mesh = *config.mutable_mesh();
  if (mesh.network().empty()) return {};
  CGX_RETURN_IF_ERROR(check_network(config));
  CGX_ASSIGN_OR_RETURN(
      const NetworkList networks,
      NetworkList::parse(std::vector<std::string>(mesh.network().begin(), mesh.network().end())));
  const std::vector<InterfaceAddress> addresses = interface_addresses(networks);
  if (addresses.empty()) return in_no_network("mesh.network", networks);
  *mesh.mutable_trusted_networks() = mesh.network();
  v1::Mesh unchanged;
  config::fill_defaults(unchanged);
  if (mesh.listen() == unchanged.listen()) {
    mesh.set_listen(address_of(addresses.front().host, 0));
  }
  return {};
}

}  // namespace cgx::daemon
