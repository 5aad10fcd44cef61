// Whether a plan on trial is faster than the one it alternates with: steps of a block against those
// of the other block of its pair. Pure; fed in the order of steps.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

class TrialScore {
 public:
  // `shared`: others have the cores now and then, so that a few steps show who was disturbed.
  TrialScore(const Trial& trial, uint64_t first_step, bool shared = false)
      : trial_(trial), first_step_(first_step), shared_(shared) {}

  // What the step took since the one before; 0: it does not count. The first step of a block does
  // not either: it follows one under the other plan.
  void add(uint64_t step, double period_ns);

  void share() { shared_ = true; }  // from now on
  bool shared() const { return shared_; }

  enum class Verdict : uint8_t { kOpen, kFaster, kNotFaster };
  Verdict verdict() const;
  bool over(uint64_t step) const { return step + 1 >= first_step_ + trial_.steps(); }

  // Medians over pairs: of the step under the plan on trial, and of its ratio to the other's.
  double tried_ns() const;
  double ratio() const;
  uint32_t pairs() const { return static_cast<uint32_t>(ratios_.size()); }

 private:
  void close_block();
  void close_pair();
  void drop_pauses();  // of the pair that closes
  void count_wins();
  bool beyond_chance() const;
  Verdict verdict_beside_others() const;

  Trial trial_;
  uint64_t first_step_ = 0;
  bool shared_ = false;
  uint64_t block_ = UINT64_MAX;        // that is being read
  std::vector<double> periods_;        // of it
  std::vector<double> tried_, other_;  // likewise, of the blocks of the open pair
  std::vector<double> tried_all_, ratios_;
  // Pairs of which all steps of the tried block took less than each of the other; of which none
  // took so much less than any of the other that it is worth a switch.
  uint32_t all_faster_ = 0, none_faster_ = 0;
  double wins_ = 0, variance_ = 0;  // steps that won, beyond what chance gives
  Verdict plain_ = Verdict::kOpen;  // a pair says that needs no second one
};

double median_of(std::vector<double> values);  // 0 of none

}  // namespace cgx::scheduler
