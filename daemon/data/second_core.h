// Whether a second thread has a core of its own: judged by what became of the jobs it was given,
// and by how often the thread that gives them had to leave its core meanwhile.
//
// Both threads are wanted on a machine with an idle core only. Elsewhere the second one takes its
// core from whoever needs it (another daemon, a trainer): its own jobs may be quick all the same,
// and what it costs shows in the data thread, which is made to wait. Owner: the data thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::daemon {

class SecondCore {
 public:
  static constexpr uint64_t kEndsWithinNs = 1'000'000;
  static constexpr uint64_t kPauseLeastNs = 2'000'000, kPauseMostNs = 1'000'000'000;
  // One preemption in a window is anybody's (a timer, the kernel's own threads).
  static constexpr uint64_t kWindowNs = 1'000'000, kPreemptionsMost = 1;

  bool free(uint64_t now_ns) const { return now_ns >= paused_until_ns_; }

  // A job is back, by itself or because the second thread had not begun it.
  void answered(uint64_t now_ns, uint64_t took_ns, bool taken_back) {
    if (taken_back || took_ns >= kEndsWithinNs) {
      pause(now_ns);
    } else {
      pause_ns_ /= 2;
    }
  }

  bool window_is_over(uint64_t now_ns) const { return now_ns >= window_until_ns_; }
  // How often the data thread has been preempted since it began; REQUIRES: window_is_over(now_ns).
  // A window that was not looked at for long, because there were no jobs, says nothing.
  void preempted(uint64_t now_ns, uint64_t count) {
    const bool fresh = now_ns < window_until_ns_ + kWindowNs;
    if (fresh && count - count_ > kPreemptionsMost) pause(now_ns);
    count_ = count;
    window_until_ns_ = now_ns + kWindowNs;
  }

 private:
  void pause(uint64_t now_ns) {
    pause_ns_ = std::clamp(2 * pause_ns_, kPauseLeastNs, kPauseMostNs);
    paused_until_ns_ = now_ns + pause_ns_;
  }

  uint64_t pause_ns_ = 0, paused_until_ns_ = 0;
  uint64_t window_until_ns_ = 0, count_ = 0;
};

}  // namespace cgx::daemon
