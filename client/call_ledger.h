// CallLedger: what one process knows of a communicator's calls outside steps.
//
// Pure bookkeeping: no I/O, no clock, no lock (the session's mutex guards it). Invariant: at most
// kInFlightMax calls are unfinished; the last kCallsKept outcomes can be asked for.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::client {

struct Call {
  bool begun = false, finished = false;
  Status failure;
};

class CallLedger {
 public:
  static constexpr uint32_t kInFlightMax = 4;
  static constexpr uint64_t kCallsKept = 64;

  bool room() const { return in_flight_ < kInFlightMax; }
  uint32_t in_flight() const { return in_flight_; }
  uint64_t begin() {
    calls_[next_ % kCallsKept] = {.begun = true};
    ++in_flight_;
    return next_++;
  }
  Result<const Call*> find(uint64_t number) const {
    if (number < next_ && next_ - number <= kCallsKept) return &calls_[number % kCallsKept];
    return Status(StatusCode::kNOT_FOUND,
                  "call " + std::to_string(number) + (number < next_ ? " is forgotten; the last " +
                  std::to_string(kCallsKept) + " are kept" : " has not begun"));
  }
  // Returns how many completion slots became free.
  uint32_t apply(const cgx_completion_record& record, const Status& failure) {
    if (record.step >= next_ || next_ - record.step > kCallsKept) return 0;
    Call& call = calls_[record.step % kCallsKept];
    if (call.finished) return 0;
    call.finished = true;
    call.failure = failure;
    --in_flight_;
    return 1;
  }

 private:
  std::array<Call, kCallsKept> calls_;
  uint64_t next_ = 0;
  uint32_t in_flight_ = 0;
};

}  // namespace cgx::client
