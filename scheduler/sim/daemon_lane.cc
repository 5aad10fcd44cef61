#include "scheduler/sim/daemon_lane.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler::sim {

void DaemonLane::add(Work work, uint64_t now_ns) {
  waiting_.push_back(std::move(work));
  if (!under_way_) begin_next(std::max(done_ns_, static_cast<double>(now_ns)));
}

void DaemonLane::begin_next(double from_ns) {
  if (waiting_.empty()) return;
  under_way_ = std::move(waiting_.front());
  waiting_.pop_front();
  done_ns_ = from_ns + under_way_->price_ns;
  busy_ns_ += under_way_->price_ns;
  if (watch_) watch_(*under_way_, from_ns, done_ns_);
}

int DaemonLane::advance(uint64_t now_ns) {
  int done = 0;
  while (under_way_ && done_ns_ <= static_cast<double>(now_ns)) {
    const double from_ns = done_ns_;
    const Work work = *std::exchange(under_way_, std::nullopt);
    if (work.effect) work.effect();  // may add work, which begins now at the earliest
    if (!under_way_) begin_next(from_ns);
    ++done;
  }
  return done;
}

uint64_t DaemonLane::next_ns() const {
  return under_way_ ? static_cast<uint64_t>(std::ceil(done_ns_)) : UINT64_MAX;
}

}  // namespace cgx::scheduler::sim
