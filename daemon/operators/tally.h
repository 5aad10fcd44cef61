// What the recorder's events add up to, job by job: how long waiting, encoding, the wire and
// decoding take, how late each rank is, and what happened when. Counted beside the data thread,
// which only writes the events.
//
// Thread rule: one thread, or a lock around it (Watch). Invariant: memory is bounded by what is
// alive.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/recorder.h"

namespace cgx::daemon {

class Histogram {
 public:
  static constexpr std::array<uint64_t, 11> kBoundsNs = {
      10'000,     40'000,      160'000,     640'000,       2'560'000,     10'240'000,
      40'960'000, 163'840'000, 655'360'000, 2'621'440'000, 10'485'760'000};

  void add(uint64_t ns);
  uint64_t count() const { return count_; }
  uint64_t sum_ns() const { return sum_ns_; }
  // Of values up to kBoundsNs[i], and at [kBoundsNs.size()] of all.
  uint64_t up_to(size_t i) const;

 private:
  std::array<uint64_t, kBoundsNs.size() + 1> counts_{};
  uint64_t count_ = 0, sum_ns_ = 0;
};

// What of an operation is measured. X(name, help)
#define CGX_PHASES(X)                                                           \
  X(wait, "time an operation waited for the other ranks of this machine")       \
  X(encode, "time encoding one chunk took")                                     \
  X(reduce, "time adding every machine's parts of one chunk took")              \
  X(wire, "time from an operation's first frame sent to its last one received") \
  X(decode, "time decoding one machine's results of one chunk took")            \
  X(exchange, "time from the beginning of a step's first operation to the end of the step")

enum class Phase : uint8_t {
#define X(name, help) k##name,
  CGX_PHASES(X)
#undef X
      kCount
};

struct Mark {  // on a time axis
  uint64_t time_ns = 0;
  scheduler::EventKind kind{};
  uint64_t value = 0;  // epoch of a switch, status of a failure, ns of a late rank
  uint32_t peer = 0;   // rank or machine
};

class Tally {
 public:
  struct Job {  // a communicator
    std::array<Histogram, static_cast<size_t>(Phase::kCount)> phases;
    std::map<uint16_t, double> late_ns;  // by rank: behind the first of its machine, lately
    std::deque<Mark> marks;
    uint64_t steps = 0;    // completed after another one
    uint64_t step_ns = 0;  // of them, summed: from the end of the one before to their own
    uint64_t exchange_ns = 0;
    uint64_t step_end_ns = 0;  // of the last one
    const Histogram& phase(Phase one) const { return phases[static_cast<size_t>(one)]; }
  };

  void take(const scheduler::Event& event);
  // What it has of the communicator of that index, if it is this one.
  const Job* find(uint16_t index, uint64_t created_ns) const;

 private:
  struct Operation {
    uint64_t asked_ns = 0, begun_ns = 0, sent_ns = 0, received_ns = 0;
  };
  struct Step {
    uint64_t begun_ns = 0;
    std::map<uint16_t, uint64_t> ended_ns;
  };
  using OperationKey = std::pair<uint32_t, uint16_t>;  // step or call, group
  struct Open {
    Job job;
    uint64_t made_ns = 0;
    std::map<OperationKey, Operation> operations;
    std::map<uint32_t, Step> steps;
  };

  static Operation& operation_of(Open& open, const scheduler::Event& event);
  static Step& step_of(Open& open, const scheduler::Event& event);
  static void begin(Open& open, const scheduler::Event& event);
  static void complete(Open& open, const scheduler::Event& event);
  void step_over(Open& open, const scheduler::Event& event);
  static void operation_over(Open& open, const Operation& operation);
  static void mark(Job& job, const scheduler::Event& event, uint64_t value);

  std::map<uint16_t, Open> open_;  // by index
};

}  // namespace cgx::daemon
