// DataAgent, what others see of it: snapshots, and counters of the daemon's edges.
#include <algorithm>

#include "daemon/base/clock.h"
#include "daemon/data/data_agent.h"

namespace cgx::daemon {
namespace {

// Whoever asks for snapshots gets a hundredth of the thread, and ten a second whatever they cost.
constexpr uint64_t kSnapshotEveryNs = 100 * kMillisecond;
constexpr uint64_t kSnapshotShare = 100;

}  // namespace

bool DataAgent::snapshot_due(uint64_t now_ns) const {
  return snapshots_.wanted() && now_ns >= next_snapshot_ns_;
}

// One communicator a round, and no more of the thread's time than askers may have of it.
int DataAgent::make_snapshot() {
  if (!showing_ && !snapshot_due(now_ns_)) return 0;
  const uint64_t began = monotonic_ns();
  if (!showing_) {
    snapshots_.begin();
    showing_ = std::make_unique<Showing>();
    showing_->left = engine_->communicators();
    std::reverse(showing_->left.begin(), showing_->left.end());
  }
  Showing& showing = *showing_;
  if (!showing.left.empty()) {
    engine_->add_communicator(showing.left.back(), showing.shown);
    showing.left.pop_back();
  }
  const bool complete = showing.left.empty();
  if (complete) {
    flush_counters();
    scheduler::Snapshot& shown = showing.shown;
    engine_->add_totals(began, shown);
    shown.duty = duty_.snapshot(began);
    add_gpus(shown);
    snapshots_.put_up(std::move(shown));
  }
  const uint64_t took = monotonic_ns() - began;
  showing.took_ns += took;
  duty_.took("a snapshot", took);
  if (!complete) return 1;
  next_snapshot_ns_ = began + std::min(kSnapshotEveryNs, kSnapshotShare * showing.took_ns);
  showing_.reset();
  return 1;
}

void DataAgent::flush_counters() {
  if (transport_) {
    const transport::Transport::Totals now = transport_->totals();
    engine_->count(scheduler::Counter::kconnections_refused,
                   now.connections_refused - counted_.connections_refused);
    engine_->count(scheduler::Counter::kconnections_lost,
                   now.connections_lost - counted_.connections_lost);
    counted_ = now;
  }
  for (size_t i = 0; i < static_cast<size_t>(scheduler::Counter::kCount); ++i) {
    const auto counter = static_cast<scheduler::Counter>(i);
    if (const uint64_t amount = counters_.take(counter)) engine_->count(counter, amount);
  }
}

}  // namespace cgx::daemon
