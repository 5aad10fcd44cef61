// A random program for a simulated cluster: what every rank does, in order, and what happens beside
// it. Made from a seed, plain data, printable; an item can be left out without changing the others,
// so a program that fails can be made small.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"

namespace cgx::sim {

// A number that depends on the seed and on what it is for, and on nothing else.
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

// How a machine's arithmetic answers.
enum class SitePace : uint8_t {
  kInline,  // inside the call
  kPriced,  // one part after the other, each at its price; frames are read at once
  kLate,    // in any order; frames are held until then
};

enum class Fate : uint8_t { kUnsaid, kKept, kDropped };  // of a step, after it is complete

struct Item {
  enum class Kind : uint8_t {
    // What every rank does.
    kStep,
    kCall,
    kCommit,  // registers further tensors first
    // What one rank does at a random moment of the step that follows.
    kAbandon,  // submits a tensor again
    kLeave,    // says goodbye, or closes the communicator
    kDie,      // without a word
    kLate,     // sleeps for seconds
    kNever,    // does nothing any more
    // What happens to machines when `rank` comes there.
    kPolicy,      // an operator asks `machine`
    kKillDaemon,  // `machine`
    kStopDaemon,
    kDisconnect,  // `machine` from `other`
  };
  static constexpr uint32_t kNobody = UINT32_MAX;

  Kind kind = Kind::kStep;
  uint64_t seed = 0;  // of everything random inside it
  uint32_t rank = 0, machine = 0, other = 0;
  uint32_t odd_rank = kNobody;  // calls: submits another shape; steps: says another unit or fate

  // Steps.
  Fate fate = Fate::kUnsaid;
  bool absences = false, nonfinite = false, odd_unit = false;
  double unit = 1;
  uint32_t wait_percent = 50;   // of the ranks wait for it before they go on
  uint32_t inout_percent = 30;  // of the tensors do not come back where they were

  // Calls.
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t elements = 0;

  uint32_t tensors = 0;  // commits: so many more
  scheduler::Policy policy;
  bool closes_only = false;  // kLeave: the communicator, not the session
  int64_t sleep_ns = 0;      // kLate

  bool ends_everything() const {
    return kind == Kind::kLeave || kind == Kind::kDie || kind == Kind::kNever ||
           kind == Kind::kKillDaemon || kind == Kind::kStopDaemon || kind == Kind::kDisconnect ||
           (kind == Kind::kStep && odd_rank != kNobody && !odd_unit);
  }
  std::string text() const;
};

struct Program {
  uint64_t seed = 0;
  std::vector<uint32_t> shape;  // ranks per machine
  scheduler::Policy policy;
  int64_t latency_ns = 20'000, jitter_ns = 0, spike_ns = 0;
  int64_t planning_ns = 0;       // at most, until a plan is made
  std::vector<SitePace> sites;   // by machine
  int64_t site_ns = 0;           // at most, until a late site answers
  uint64_t site_fails_at = 0;    // the first slow machine's: this job and all behind it; 0: none
  int64_t think_ns = 0;          // at most, between two things a rank does
  uint32_t notice_percent = 50;  // how often a failure is noticed before there is need to wait
  std::vector<Cluster::Tensor> tensors;  // all that are ever registered
  uint32_t first_tensors = 0;            // with the first commit
  scheduler::SearchPace search;          // of policies of mode auto
  std::vector<Item> items;

  uint32_t ranks() const;
  uint32_t machine_of(uint32_t rank) const;
  SitePace slowest() const;
  uint32_t failing_machine() const;  // UINT32_MAX: none
  std::string text() const;
};

Program program_of(uint64_t seed);

}  // namespace cgx::sim
