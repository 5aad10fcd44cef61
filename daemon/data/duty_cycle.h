// How busy the data thread is, and with what: a job whose request keeps it for milliseconds makes
// every other job's step longer.
//
// Thread rule: owned by the data agent.
// A round's processor time is exact to 0.1 ms, and read for rounds of at least 0.2 ms only: a
// reading costs as much as a small message. What others took from the core shows as the difference
// to the time on the clock.
#pragma once

#include <array>
#include <cstdint>

#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

class DutyCycle {
 public:
  using CpuClock = uint64_t (*)();  // of the calling thread
  explicit DutyCycle(CpuClock cpu_ns) : cpu_ns_(cpu_ns) {}

  void begin_round(uint64_t now_ns);  // ends the one before
  void pause(uint64_t now_ns);        // ends the round: the thread is about to sleep
  // Part of the round went to this; `what` is a literal.
  void took(const char* what, uint64_t ns);
  void worked() { worked_ = true; }

  uint64_t busy_ns() const { return busy_ns_; }  // in all rounds that had something to do
  scheduler::DutySnapshot snapshot(uint64_t now_ns) const;
  // Since this was asked last: a round so long that somebody should read about it. CPU time 0:
  // none.
  scheduler::RoundSnapshot take_warning();

  static constexpr uint64_t kWarnNs = 50'000'000;

 private:
  static constexpr uint64_t kLookNs = 200'000;
  static constexpr uint64_t kMarkNs = 100'000;
  static constexpr uint64_t kSliceNs = 10'000'000'000;
  static constexpr size_t kSlices = 6;  // a minute

  struct Slice {
    uint64_t number = 0;  // of 10 s since the clock began
    scheduler::RoundSnapshot longest;
  };

  void end_round(uint64_t now_ns);
  void keep(uint64_t now_ns, const scheduler::RoundSnapshot& round);

  const CpuClock cpu_ns_;
  bool running_ = false, worked_ = false;
  uint64_t began_ns_ = 0;
  uint64_t mark_ns_ = 0, cpu_mark_ns_ = 0;  // when the processor time was read, and what it was
  const char* longest_part_ = nullptr;      // of this round
  uint64_t longest_part_ns_ = 0;
  uint64_t rounds_ = 0, busy_ns_ = 0;
  scheduler::RoundSnapshot longest_, warning_;
  std::array<Slice, kSlices> slices_;
};

uint64_t thread_cpu_ns();

}  // namespace cgx::daemon
