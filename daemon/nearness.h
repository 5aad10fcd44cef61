// Whether the data thread should run on the core of the rank that waits for it. Pure.
//
// Waking a sleeper on another core costs 15-30 microseconds where an idle virtual core has to leave
// HLT first, and the scheduler prefers idle cores: with operations of that length most of their
// time goes into waking. The rank sleeps while the daemon works for it, so both fit on one core.
// Invariants: follows only ranks that sleep in libcgx, only after a run of short errands that ended
// on the same other core, and lets go as soon as sharing that core makes the thread wait for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::daemon {

struct ThreadTimes {
  uint64_t ran_ns = 0, queued_ns = 0;  // running, and runnable without running; ever
};

class Nearness {
 public:
  enum class Move : uint8_t { kStay, kFollow, kRelease };

  static constexpr uint64_t kShortNs = 200'000;    // an errand that is worth following for
  static constexpr uint32_t kErrands = 32;         // in a row, before a move
  static constexpr uint64_t kLookNs = 10'000'000;  // between two looks at the thread's times
  static constexpr uint64_t kQueuedPart = 10;      // less than a tenth of the time is no crowd
  static constexpr uint64_t kPatienceNs = 1'000'000'000;  // before following again; doubles
  static constexpr uint64_t kPatienceMaxNs = 64'000'000'000;

  void woken(uint64_t now_ns) { woken_ns_ = now_ns; }

  // The thread ran on `own` when it woke a rank that had gone to sleep on `cpu`.
  void answered(uint32_t cpu, uint32_t own) {
    if (cpu == own) {
      far_ = 0;
    } else {
      far_ = cpu == target_ ? far_ + 1 : 1;
      target_ = cpu;
    }
  }

  // `times`: of the thread, asked for only when they are needed.
  template <typename Times>
  Move before_sleep(uint64_t now_ns, Times times) {
    if (now_ns - woken_ns_ > kShortNs) {
      far_ = 0;
      ++long_;
    } else {
      long_ = 0;
    }
    if (following_) {
      if (long_ >= kErrands) return release(now_ns, 0);
      if (now_ns - looked_ns_ >= kLookNs && crowded(now_ns, times())) {
        patience_ns_ = std::min(2 * patience_ns_, kPatienceMaxNs);
        return release(now_ns, patience_ns_);
      }
    }
    if (far_ < kErrands || now_ns < not_before_ns_) return Move::kStay;
    far_ = 0;
    following_ = true;
    looked_ns_ = now_ns;
    at_look_ = times();
    return Move::kFollow;
  }

  uint32_t target() const { return target_; }
  bool following() const { return following_; }

 private:
  // The rank that rings takes a moment to fall asleep, so a part of each errand is always queueing.
  bool crowded(uint64_t now_ns, const ThreadTimes& times) {
    const uint64_t queued_ns = times.queued_ns - at_look_.queued_ns;
    const bool result =
        queued_ns > times.ran_ns - at_look_.ran_ns && queued_ns * kQueuedPart > now_ns - looked_ns_;
    looked_ns_ = now_ns;
    at_look_ = times;
    return result;
  }
  Move release(uint64_t now_ns, uint64_t pause_ns) {
    far_ = long_ = 0;
    following_ = false;
    not_before_ns_ = now_ns + pause_ns;
    return Move::kRelease;
  }

  uint64_t woken_ns_ = 0, not_before_ns_ = 0, looked_ns_ = 0;
  ThreadTimes at_look_;
  uint64_t patience_ns_ = kPatienceNs / 2;
  uint32_t target_ = 0, far_ = 0, long_ = 0;
  bool following_ = false;
};

}  // namespace cgx::daemon
