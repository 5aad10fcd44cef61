// Messages have a part of a round, and where they take long a quarter of the thread while
// operations are open: a client may ask as often as it likes for what takes a millisecond.
// Owner: the data thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::daemon {

class MessageShare {
 public:
  static constexpr uint64_t kRoundNs = 500'000;  // no further message is begun after that
  static constexpr uint64_t kShare = 4;
  // However long one took, whoever asks is heard again after this.
  static constexpr uint64_t kPauseMostNs = 500'000'000;

  bool paused(uint64_t now_ns) const { return now_ns < next_ns_; }
  bool room(uint64_t took_ns) const { return took_ns < kRoundNs; }  // for one more in the round
  uint64_t next_ns() const { return next_ns_; }

  // The messages of a round have ended and took so long.
  void took(uint64_t ended_ns, uint64_t ns) {
    if (ns < kRoundNs) return;
    next_ns_ = ended_ns + std::min((kShare - 1) * ns, kPauseMostNs);
  }

 private:
  uint64_t next_ns_ = 0;
};

}  // namespace cgx::daemon
