// What an agent does when a round of work found nothing: go round again, or sleep. Pure.
//
// Spinning buys latency only right after work and only while something is in flight; on shared
// cores it takes the core from whoever would produce the work (reference: 15 against 36-223
// microseconds).
#pragma once

#include <cstdint>

namespace cgx::daemon {

// What the agent says of spinning after a round; the options may still forbid it.
enum class Spin : uint8_t {
  kNo,       // nothing is in flight
  kBriefly,  // something is: worth `spin_ns` after the last work
  kAlways,   // asked for, and there are cores to burn
};

class IdleStrategy {
 public:
  enum class Next : uint8_t { kWork, kSleep };

  static constexpr uint32_t kCreditMax = 8;  // spins that paid, minus those that did not
  static constexpr uint32_t kProbeEvery = 16;

  explicit IdleStrategy(uint64_t spin_ns) : spin_ns_(spin_ns) {}

  // `now_ns`: when the round began. `work`: what it found. Spins only while that pays: on crowded
  // cores and slow links most spins end in sleep anyway.
  Next after_round(uint64_t now_ns, int work, Spin spin) {
    if (worked_) idle_since_ns_ = now_ns;  // a round may take long: idle time starts after it
    worked_ = work > 0;
    if (worked_) {
      if (spinning_ && credit_ < kCreditMax) ++credit_;
      spinning_ = false;
      return Next::kWork;
    }
    if (spin == Spin::kAlways) return Next::kWork;
    const bool recent = now_ns - idle_since_ns_ < spin_ns_;
    if (spinning_ && !recent && credit_ > 0) --credit_;
    spinning_ = spin == Spin::kBriefly && recent && (spinning_ || worth_it());
    return spinning_ ? Next::kWork : Next::kSleep;
  }

 private:
  bool worth_it() {
    if (credit_ > 0) return true;
    declined_ = (declined_ + 1) % kProbeEvery;
    return declined_ == 0;
  }

  const uint64_t spin_ns_;
  uint64_t idle_since_ns_ = 0;
  uint32_t credit_ = kCreditMax, declined_ = 0;
  bool worked_ = true, spinning_ = false;
};

}  // namespace cgx::daemon
