// What trials have cost a job beyond the plan that ran beside them, and what they may: a share of
// the time that has passed, and a credit for the time before there is any. Pure; fed in the order
// of steps. Owned by one pilot.
#pragma once

#include <cstdint>
#include <vector>

namespace cgx::scheduler {

struct TrialTime {  // as people are shown it
  uint64_t spent_ns = 0, allowed_ns = 0, elapsed_ns = 0;
  bool waits = false;  // what is worth a trial does, until time has paid for it
};

class TrialAccount {
 public:
  static constexpr double kShare = 0.01;  // of the time that has passed
  // In steps of the plan that runs. Three plans that take three times as long cost 24: a first
  // search may begin its third trial all the same.
  static constexpr double kCreditSteps = 20;
  // Overdrawn by so many steps, not even the trial under way goes on.
  static constexpr double kFarSteps = 10;

  // Everything is searched anew: the next search has the whole credit.
  void begin() { tops_up_ = true; }
  // A step now takes so long under the plan that runs; the longest counts.
  void begin_search(double step_ns);
  void passed(double period_ns) { elapsed_ns_ += period_ns; }
  // This plan is on trial, beside one under which a step took so long; the one before no more.
  void try_plan(uint64_t epoch, double beside_ns);
  // A step while plans alternate. The first one under either plan pays for the switch.
  void add(bool tries, double period_ns);

  bool covers() const { return left_ns() >= 0; }  // another trial
  bool far_overdrawn() const { return left_ns() < -kFarSteps * now_ns_; }
  double spent_ns() const { return closed_ns_ + open_ns(); }
  double allowed_ns() const { return kShare * elapsed_ns_ + credit_ns_; }
  double elapsed_ns() const { return elapsed_ns_; }

 private:
  double left_ns() const { return allowed_ns() - spent_ns(); }
  double open_ns() const;

  double elapsed_ns_ = 0, credit_ns_ = 0;
  double step_ns_ = 0;    // of the plan that runs, the longest so far
  double now_ns_ = 0;     // likewise, of the last search
  double closed_ns_ = 0;  // spent on earlier trials
  bool tops_up_ = true;
  uint64_t epoch_ = 0;    // of the plan on trial; 0: none yet
  double beside_ns_ = 0;  // what a step beside it took before
  bool tried_last_ = false;
  // Periods of steps: under the plan on trial; beside it, and the first ones of those in a row.
  std::vector<double> tried_, besides_, firsts_;
};

}  // namespace cgx::scheduler
