// What keys of the daemon's file owe each other. Single keys are checked from their options.
#include <algorithm>

#include "config/problem.h"

namespace cgx::config {
namespace {

bool complete(const v1::Tls& tls) {
  return !tls.ca_file().empty() && !tls.certificate_file().empty() && !tls.key_file().empty();
}
bool empty(const v1::Tls& tls) {
  return tls.ca_file().empty() && tls.certificate_file().empty() && tls.key_file().empty();
}

}  // namespace

void find_contradictions(const v1::Config& config, std::vector<Problem>& problems) {
  const auto unless = [&](bool right, const char* key, const char* text) {
    if (!right) problems.push_back({key, text});
  };
  const uint32_t weight = config.limits().weight();
  unless(config.policy().weight() <= weight, "policy.weight", "is above limits.weight");
  const auto& jobs = config.jobs();
  unless(std::all_of(jobs.begin(), jobs.end(),
                     [&](const auto& job) { return job.weight() <= weight; }),
         "jobs", "one has a weight above limits.weight");
  const v1::Timeouts& timeouts = config.timeouts();
  unless(complete(config.mesh().tls()) || empty(config.mesh().tls()), "mesh.tls",
         "needs ca_file, certificate_file and key_file, or none of them");
  unless(config.mesh().key_file().empty() || config.mesh().cluster_key().empty(),
         "mesh.cluster_key", "is set beside mesh.key_file; keep one of them");
  unless(
      config.control().listen().empty() || complete(config.control().tls()), "control.listen",
      "needs ca_file, certificate_file and key_file in control.tls: there is no TCP without TLS");
  unless(timeouts.peer_lost_ms() >= 2 * timeouts.heartbeat_ms(), "timeouts.peer_lost_ms",
         "must be at least twice timeouts.heartbeat_ms");
  unless(timeouts.communicator_ms() >= timeouts.late_warning_ms(), "timeouts.communicator_ms",
         "must not be shorter than timeouts.late_warning_ms");
}

}  // namespace cgx::config
