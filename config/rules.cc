// What keys of the daemon's file owe each other. Single keys are checked from their options.
#include "config/problem.h"
#include "config/text.h"

namespace cgx::config {
namespace {

bool complete(const v1::Tls& tls) {
  return !tls.ca_file().empty() && !tls.certificate_file().empty() && !tls.key_file().empty();
}
bool empty(const v1::Tls& tls) {
  return tls.ca_file().empty() && tls.certificate_file().empty() && tls.key_file().empty();
}

std::string time_of(uint64_t ms) {
  return print_quantity(ms, Quantity::kMilliseconds);
}

// The key that chooses UCX; empty: nothing does.
std::string chooser_of_ucx(const v1::Transport& transport) {
  if (transport.name() == "ucx") return "transport.name";
  const bool rdma = transport.ucx_transports_size() != 1 || transport.ucx_transports(0) != "tcp";
  return transport.name() == "auto" && rdma ? "transport.ucx_transports" : "";
}

}  // namespace

void find_contradictions(const v1::Config& config, std::vector<Problem>& problems) {
  const auto unless = [&](bool right, const std::string& key, const std::string& text) {
    if (!right) problems.push_back({key, text});
  };
  const uint32_t most = config.limits().weight();
  const auto check_weight = [&](const std::string& key, uint32_t weight) {
    unless(weight <= most, key,
           std::to_string(weight) + " is above limits.weight, " + std::to_string(most));
  };
  check_weight("policy.weight", config.policy().weight());
  for (int i = 0; i < config.jobs_size(); ++i) {
    check_weight(join_key(element_key("jobs", i), "weight"), config.jobs(i).weight());
  }
  const v1::Timeouts& timeouts = config.timeouts();
  unless(complete(config.mesh().tls()) || empty(config.mesh().tls()), "mesh.tls",
         "needs ca_file, certificate_file and key_file, or none of them");
  unless(config.mesh().key_file().empty() || config.mesh().cluster_key().empty(),
         "mesh.cluster_key", "is set beside mesh.key_file; keep one of them");
  unless(
      config.control().listen().empty() || complete(config.control().tls()), "control.listen",
      "needs ca_file, certificate_file and key_file in control.tls: there is no TCP without TLS");
  const std::string ucx = chooser_of_ucx(config.transport());
  unless(ucx.empty() || config.transport().seal() == "link", "transport.seal",
         config.transport().seal() + " needs tcp, but " + ucx +
             " chooses UCX, which authenticates and encrypts nothing");
  unless(timeouts.peer_lost_ms() >= 2 * timeouts.heartbeat_ms(), "timeouts.peer_lost_ms",
         time_of(timeouts.peer_lost_ms()) + " is less than twice timeouts.heartbeat_ms, " +
             time_of(timeouts.heartbeat_ms()));
  unless(timeouts.communicator_ms() >= timeouts.late_warning_ms(), "timeouts.communicator_ms",
         time_of(timeouts.communicator_ms()) + " is shorter than timeouts.late_warning_ms, " +
             time_of(timeouts.late_warning_ms()));
}

}  // namespace cgx::config
