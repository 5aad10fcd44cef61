#include "scheduler/planners/trial_account.h"

#include <algorithm>
#include <utility>

#include "scheduler/planners/verdict.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kStepsToTell = 3;  // fewer show a trainer's pause as well as a slow plan
constexpr double kPause = 2;        // what takes so many times as long is one, and counts as this

}  // namespace

void TrialAccount::begin_search(double step_ns) {
  now_ns_ = step_ns;
  step_ns_ = std::max(step_ns_, step_ns);
  credit_ns_ = std::max(credit_ns_, kCreditSteps * step_ns_);
  if (!std::exchange(tops_up_, false)) return;
  credit_ns_ = std::max(credit_ns_, spent_ns() - kShare * elapsed_ns_ + kCreditSteps * step_ns);
}

void TrialAccount::try_plan(uint64_t epoch, double beside_ns) {
  if (epoch == epoch_) return;
  closed_ns_ += open_ns();
  epoch_ = epoch;
  beside_ns_ = beside_ns;
  tried_last_ = false;
  for (std::vector<double>* periods : {&tried_, &besides_, &firsts_}) periods->clear();
}

void TrialAccount::add(bool tries, double period_ns) {
  const bool back = std::exchange(tried_last_, tries) && !tries;
  (tries ? tried_ : back ? firsts_ : besides_).push_back(period_ns);
}

// A plan that was faster has cost nothing.
double TrialAccount::open_ns() const {
  if (tried_.size() < kStepsToTell) return 0;
  const double beside_ns = besides_.empty() ? beside_ns_ : median_of(besides_);
  const double most_ns = kPause * std::max(median_of(tried_), beside_ns);
  double spent_ns = 0;
  for (const std::vector<double>* periods : {&tried_, &firsts_}) {
    for (const double period_ns : *periods) spent_ns += std::min(period_ns, most_ns) - beside_ns;
  }
  return std::max(0.0, spent_ns);
}

}  // namespace cgx::scheduler
