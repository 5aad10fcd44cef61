// The terms of a communicator, and what lies between two (PROTOCOL 26): who has sent its last frame
// of this one, who has reported what came of it, and where the next one starts.
//
//   freeze() -> all_flushed() -> the own report
//     -> coordinator: all_reported(), conclude() -> begin()
//
// Frames that come before the coordinator's word for what they are of are kept here. Owned by one
// communicator; told of everything, it asks nobody.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "scheduler/communicator/members.h"

namespace cgx::scheduler {

class Terms {
 public:
  explicit Terms(const Members& members) : members_(members), machines_(members.machines()) {}

  uint32_t number() const { return number_; }

  // This one ends
  void freeze(uint64_t now_ns) { frozen_since_ns_ = now_ns; }
  uint64_t frozen_since_ns() const { return frozen_since_ns_; }
  void flush(uint32_t machine) { machines_[machine].flushed = true; }
  bool flushed(uint32_t machine) const { return machines_[machine].flushed; }
  // This machine's own to another one; true: it has not been said yet.
  bool tell_flush(uint32_t machine) { return !std::exchange(machines_[machine].told, true); }
  bool all_flushed() const;  // all other machines
  void report(uint32_t machine, Report report);
  bool has_reported() const { return machines_[members_.machine].reported; }  // this machine
  bool all_reported() const;
  bool all_reported_plan(uint64_t hash) const;
  // Whose word is missing: of the flushes, then of the reports, or of Start.
  std::vector<uint32_t> awaited() const;

  // The next one starts
  // Coordinator, when all have reported: the first step and call, and why the term before ended.
  // STEP_LOST: something completed on some machines only. `has_groups`: steps have work to redo.
  Result<Start> conclude(const Status& why, bool has_groups) const;
  // What an honest coordinator says follows from what this machine has reported.
  Status check(const Start& start, bool has_groups) const;
  void begin();

  // Frames that are ahead
  struct EarlyFrame {
    wire::FrameHeader header;
    std::vector<std::byte> payload;
  };
  // False: more than windows allow.
  bool keep_early(const wire::FrameHeader& header, std::span<const std::byte> payload);
  std::vector<EarlyFrame> take_early() {
    early_bytes_ = 0;
    return std::exchange(early_, {});
  }
  uint64_t early_bytes() const { return early_bytes_; }

 private:
  struct Machine {
    bool flushed = false;  // nothing more of this term comes from it
    bool told = false;     // nothing more of this term goes to it
    bool reported = false;
    Report report;
  };

  Status check_reports() const;

  const Members& members_;
  uint32_t number_ = 0;
  uint64_t frozen_since_ns_ = 0;
  std::vector<Machine> machines_;
  std::vector<EarlyFrame> early_;
  uint64_t early_bytes_ = 0;
};

}  // namespace cgx::scheduler
