#include "daemon/reload.h"

#include <algorithm>
#include <iterator>

namespace cgx::daemon {
namespace {

// Keys, and sections with all their keys, that may change while the daemon runs.
constexpr std::string_view kMayChange[] = {
    "policy",
    "jobs",
    "log.level",
    "limits.communicators",
    "limits.tensors",
    "limits.plan_bytes",
    "limits.links",
    "limits.weight",
    "timeouts.heartbeat_ms",
    "timeouts.peer_lost_ms",
    "timeouts.stalled_ms",
    "timeouts.late_warning_ms",
    "timeouts.communicator_ms",
    "timeouts.residuals_ms",
    "timeouts.prepare_ms",
    "timeouts.drain_ms",
};

bool may_change(std::string_view key) {
  return std::any_of(std::begin(kMayChange), std::end(kMayChange), [&](std::string_view allowed) {
    const bool same = key.substr(0, allowed.size()) == allowed;
    return same && (key.size() == allowed.size() || key[allowed.size()] == '.' ||
                    key[allowed.size()] == '[');
  });
}

}  // namespace

Reload plan_reload(const v1::Config& running, const v1::Config& changed) {
  Reload reload{.effective = running, .taken = {}, .waiting = {}};
  for (const config::KeyDifference& one : config::diff(running, changed)) {
    if (may_change(one.key)) {
      reload.taken.push_back(one);
    } else {
      reload.waiting.push_back(one.key);
    }
  }
  v1::Config& effective = reload.effective;
  *effective.mutable_policy() = changed.policy();
  *effective.mutable_jobs() = changed.jobs();
  effective.mutable_log()->set_level(changed.log().level());
  effective.mutable_limits()->set_communicators(changed.limits().communicators());
  effective.mutable_limits()->set_tensors(changed.limits().tensors());
  effective.mutable_limits()->set_plan_bytes(changed.limits().plan_bytes());
  effective.mutable_limits()->set_links(changed.limits().links());
  effective.mutable_limits()->set_weight(changed.limits().weight());
  v1::Timeouts& timeouts = *effective.mutable_timeouts();
  const v1::Timeouts& from = changed.timeouts();
  timeouts.set_heartbeat_ms(from.heartbeat_ms());
  timeouts.set_peer_lost_ms(from.peer_lost_ms());
  timeouts.set_stalled_ms(from.stalled_ms());
  timeouts.set_late_warning_ms(from.late_warning_ms());
  timeouts.set_communicator_ms(from.communicator_ms());
  timeouts.set_residuals_ms(from.residuals_ms());
  timeouts.set_prepare_ms(from.prepare_ms());
  timeouts.set_drain_ms(from.drain_ms());
  return reload;
}

}  // namespace cgx::daemon
