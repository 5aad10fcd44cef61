// Attempts at a step, by local rank: which one a rank's records carry, who has been told of a
// failure and has not asked for the next attempt, which step was given up here, and what ranks say
// while a failure is being settled.
//
// Owned by one communicator; told of everything, it asks nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::scheduler {

class Attempts {
 public:
  explicit Attempts(size_t ranks) : ranks_(ranks), held_of_(ranks) {}

  // Records
  // Whether the rank may say something of a step with it; `failure`: why the attempt before ended,
  // if it did.
  Status check(uint32_t local, uint32_t attempt, const Status& failure) const;
  bool current(uint32_t local, uint32_t attempt) const {
    return !ranks_[local].must_redo && attempt == ranks_[local].attempt;
  }
  // Until a failure is settled. An error: more than a client's completions allow.
  struct Held {
    uint32_t local = 0;
    cgx_submit_record record;
  };
  Status hold(uint32_t local, const cgx_submit_record& record);
  std::vector<Held> take_held();

  // A step that is not to be completed here, though all its results may be: until the next term
  void give_up(uint64_t step) { given_up_ = step; }
  bool gave_up(uint64_t step) const { return given_up_ == step; }
  void abandon(uint32_t local, uint64_t step) {  // the rank did it, and so knows
    give_up(step);
    ranks_[local].must_redo = true;
  }

  // Terms
  void begin_term() { given_up_.reset(); }
  void tell(const std::vector<bool>& ranks);  // they heard of the failure
  void redo(uint32_t local, uint32_t attempt) { ranks_[local] = {attempt, false}; }

 private:
  struct Rank {
    uint32_t attempt = 0;
    bool must_redo = false;
  };
  std::vector<Rank> ranks_;
  std::vector<Held> held_;
  std::vector<uint32_t> held_of_;  // how many, by local rank
  std::optional<uint64_t> given_up_;
};

}  // namespace cgx::scheduler
