#include "daemon/data/duty_cycle.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace cgx::daemon {

using scheduler::RoundSnapshot;

uint64_t thread_cpu_ns() {
  timespec used;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

void DutyCycle::begin_round(uint64_t now_ns) {
  end_round(now_ns);
  running_ = true;
  began_ns_ = now_ns;
  if (now_ns - mark_ns_ < kMarkNs) return;
  mark_ns_ = now_ns;
  cpu_mark_ns_ = cpu_ns_();
}

void DutyCycle::pause(uint64_t now_ns) {
  end_round(now_ns);
}

void DutyCycle::took(const char* what, uint64_t ns) {
  if (ns < longest_part_ns_) return;
  longest_part_ = what;
  longest_part_ns_ = ns;
}

void DutyCycle::end_round(uint64_t now_ns) {
  if (!running_) return;
  running_ = false;
  const uint64_t wall = now_ns - began_ns_;
  if (worked_) {
    ++rounds_;
    busy_ns_ += wall;
  }
  if (worked_ && wall >= kLookNs) {
    const uint64_t cpu = cpu_ns_();
    const bool blamed = longest_part_ns_ * 2 >= wall;
    keep(now_ns, RoundSnapshot{.cpu_ns = std::min(wall, cpu - cpu_mark_ns_),
                               .wall_ns = wall,
                               .what = blamed ? longest_part_ : "gradients and frames"});
    mark_ns_ = now_ns;
    cpu_mark_ns_ = cpu;
  }
  worked_ = false;
  longest_part_ = nullptr;
  longest_part_ns_ = 0;
}

void DutyCycle::keep(uint64_t now_ns, const RoundSnapshot& round) {
  const uint64_t number = now_ns / kSliceNs;
  Slice& slice = slices_[number % kSlices];
  if (slice.number != number) slice = {number, {}};
  for (RoundSnapshot* longest : {&longest_, &slice.longest}) {
    if (round.cpu_ns > longest->cpu_ns) *longest = round;
  }
  if (round.cpu_ns >= kWarnNs && round.cpu_ns > warning_.cpu_ns) warning_ = round;
}

scheduler::DutySnapshot DutyCycle::snapshot(uint64_t now_ns) const {
  scheduler::DutySnapshot shown;
  shown.rounds = rounds_;
  shown.busy_ns = busy_ns_;
  shown.cpu_ns = cpu_ns_();
  shown.longest = longest_;
  for (const Slice& slice : slices_) {
    const bool lately = slice.number + kSlices > now_ns / kSliceNs;
    if (lately && slice.longest.cpu_ns > shown.longest_lately.cpu_ns) {
      shown.longest_lately = slice.longest;
    }
  }
  return shown;
}

RoundSnapshot DutyCycle::take_warning() {
  return std::exchange(warning_, {});
}

}  // namespace cgx::daemon
