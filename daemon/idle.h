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

  explicit IdleStrategy(uint64_t spin_ns) : spin_ns_(spin_ns) {}

  // `now_ns`: when the round began. `work`: what it found.
  Next after_round(uint64_t now_ns, int work, Spin spin) {
    if (worked_) idle_since_ns_ = now_ns;  // a round may take long: idle time starts after it
    worked_ = work > 0;
    if (worked_ || spin == Spin::kAlways) return Next::kWork;
    const bool recent = now_ns - idle_since_ns_ < spin_ns_;
    return spin == Spin::kBriefly && recent ? Next::kWork : Next::kSleep;
  }

 private:
  const uint64_t spin_ns_;
  uint64_t idle_since_ns_ = 0;
  bool worked_ = true;
};

}  // namespace cgx::daemon
