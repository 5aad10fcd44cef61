// What the local ranks have said about one step: submitted, absent, ended. No plan knowledge, so a
// ledger may be opened before it is known which plan governs its step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/exchange/place.h"

namespace cgx::scheduler {

class StepLedger {
 public:
  enum class Say : uint8_t { kNothing, kSubmitted, kAbsent };
  struct Entry {
    Say say = Say::kNothing;
    Place input, output;
    uint64_t cookie = 0;
  };

  StepLedger(uint64_t step, uint32_t ranks, uint32_t tensors)
      : step_(step),
        tensors_(tensors),
        entries_(size_t{ranks} * tensors),
        ended_(ranks),
        touched_(ranks),
        end_cookies_(ranks),
        units_(ranks),
        decided_(tensors) {}

  bool fits(uint32_t ranks, uint32_t tensors) const {
    return ended_.size() == ranks && tensors_ == tensors;
  }
  // Of the same ranks and tensors, who have said nothing of this step.
  void restart(uint64_t step) {
    step_ = step;
    units_.assign(units_.size(), 0);
    if (touched_count_ == 0) return;
    entries_.assign(entries_.size(), {});
    ended_.assign(ended_.size(), false);
    touched_.assign(touched_.size(), false);
    end_cookies_.assign(end_cookies_.size(), 0);
    decided_.assign(decided_.size(), 0);
    ended_count_ = touched_count_ = 0;
    first_end_ns_ = 0;
  }

  uint64_t step() const { return step_; }
  uint32_t tensors() const { return tensors_; }
  const Entry& entry(uint32_t rank, uint32_t tensor) const {
    return entries_[size_t{rank} * tensors_ + tensor];
  }
  // REQUIRES: the entry said nothing yet.
  void submit(uint32_t rank, uint32_t tensor, const Entry& entry) {
    touch(rank);
    entries_[size_t{rank} * tensors_ + tensor] = entry;
    ++decided_[tensor];
  }
  void end(uint32_t rank, uint64_t cookie, uint64_t now_ns) {
    touch(rank);
    if (ended_count_ == 0) first_end_ns_ = now_ns;
    ended_[rank] = true;
    end_cookies_[rank] = cookie;
    ++ended_count_;
    for (uint32_t tensor = 0; tensor < tensors_; ++tensor) {
      Entry& entry = entries_[size_t{rank} * tensors_ + tensor];
      if (entry.say != Say::kNothing) continue;
      entry.say = Say::kAbsent;
      ++decided_[tensor];
    }
  }

  // The gradient unit that a rank declared for this step; 0: none yet.
  double unit(uint32_t rank) const { return units_[rank]; }
  void declare_unit(uint32_t rank, double unit) { units_[rank] = unit; }

  bool ended(uint32_t rank) const { return ended_[rank]; }
  bool touched(uint32_t rank) const { return touched_[rank]; }
  bool all_ended() const { return ended_count_ == ended_.size(); }
  uint64_t first_end_ns() const { return first_end_ns_; }  // 0: no rank has ended it
  bool any_touched() const { return touched_count_ > 0; }
  uint64_t end_cookie(uint32_t rank) const { return end_cookies_[rank]; }
  // Every local rank has submitted it or declared it absent.
  bool decided(uint32_t tensor) const { return decided_[tensor] == ended_.size(); }

 private:
  void touch(uint32_t rank) {
    touched_count_ += !touched_[rank];
    touched_[rank] = true;
  }

  uint64_t step_;
  uint32_t tensors_;
  std::vector<Entry> entries_;  // rank-major
  std::vector<bool> ended_, touched_;
  std::vector<uint64_t> end_cookies_;
  std::vector<double> units_;
  std::vector<uint32_t> decided_;  // ranks per tensor
  uint32_t ended_count_ = 0, touched_count_ = 0;
  uint64_t first_end_ns_ = 0;
};

}  // namespace cgx::scheduler
