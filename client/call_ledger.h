// CallLedger: what one process knows of a communicator's calls outside steps.
//
// Pure bookkeeping: no I/O, no clock, no lock (the session's mutex guards it). Invariant: no call
// is kWindow or more ahead of the oldest unfinished one; the last kCallsKept outcomes can be asked
// for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "client/arena.h"
#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::client {

struct Call {
  bool finished = false;
  Status failure;
  ArenaHolds buffers;  // until it is finished
};

class CallLedger {
 public:
  static constexpr uint64_t kWindow = 4;
  static constexpr uint64_t kCallsKept = 64;

  bool room() const { return next_ < oldest_ + kWindow; }
  uint32_t in_flight() const { return in_flight_; }
  uint64_t begin(ArenaHolds buffers = {}) {
    calls_[next_ % kCallsKept] = {.buffers = std::move(buffers)};
    ++in_flight_;
    return next_++;
  }
  Result<const Call*> find(uint64_t number) const {
    if (kept(number)) return &calls_[number % kCallsKept];
    std::string text = "call " + std::to_string(number);
    text += number >= next_ ? " has not begun" : " is forgotten; the last 64 are kept";
    return Status(StatusCode::kNOT_FOUND, std::move(text));
  }
  // Returns how many completion slots became free.
  uint32_t apply(const cgx_completion_record& record, const Status& failure) {
    Call& call = calls_[record.step % kCallsKept];
    if (!kept(record.step) || call.finished) return 0;
    call.finished = true;
    call.failure = failure;
    call.buffers = {};
    --in_flight_;
    while (oldest_ < next_ && calls_[oldest_ % kCallsKept].finished) ++oldest_;
    return 1;
  }

 private:
  bool kept(uint64_t number) const { return number < next_ && next_ - number <= kCallsKept; }

  std::array<Call, kCallsKept> calls_;
  uint64_t next_ = 0;
  uint64_t oldest_ = 0;  // lowest unfinished
  uint32_t in_flight_ = 0;
};

}  // namespace cgx::client
