#include "scheduler/planners/plan_times.h"

#include <algorithm>
#include <utility>

#include "scheduler/planners/verdict.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kStepsKept = 8;

}  // namespace

float told_ns(double ns) {
  return static_cast<float>(std::clamp(ns, 0.0, double{wire::MachineProfile::kMostNs}));
}

PlanTimes::OfPlan& PlanTimes::of(uint64_t epoch) {
  const auto found = std::find_if(plans_.begin(), plans_.end(),
                                  [&](const OfPlan& each) { return each.epoch == epoch; });
  if (found != plans_.end()) {
    std::rotate(found, found + 1, plans_.end());
    return plans_.back();
  }
  if (plans_.size() == wire::MachineProfile::kPlansMax) plans_.erase(plans_.begin());
  plans_.push_back({epoch, {}});
  return plans_.back();
}

void PlanTimes::take(const StepSample& sample, bool usual) {
  const bool first = std::exchange(last_epoch_, sample.epoch) != sample.epoch;
  if (first || !usual || sample.period_ns <= 0) return;
  const auto last = std::max_element(sample.arrival_ns.begin(), sample.arrival_ns.end());
  std::vector<Step>& steps = of(sample.epoch).steps;
  if (steps.size() == kStepsKept) steps.erase(steps.begin());
  steps.push_back({sample.period_ns,
                   {.epoch = sample.epoch,
                    .step_ns = told_ns(sample.step_ns),
                    .last_ns = last == sample.arrival_ns.end() ? 0 : told_ns(double{*last}),
                    .arithmetic_ns = told_ns(sample.arithmetic_ns),
                    .busy_ns = told_ns(sample.busy_ns)}});
}

// A trainer may have paused just before the step that is usual otherwise.
std::vector<wire::MachineProfile::Plan> PlanTimes::plans() const {
  std::vector<wire::MachineProfile::Plan> told;
  for (const OfPlan& plan : plans_) {
    std::vector<Step> steps = plan.steps;
    std::vector<double> periods;
    for (const Step& step : steps) periods.push_back(step.period_ns);
    const auto middle = steps.begin() + static_cast<int64_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const Step& one, const Step& other) {
      return one.times.step_ns < other.times.step_ns;
    });
    wire::MachineProfile::Plan& usual = told.emplace_back(middle->times);
    usual.between_ns = told_ns(median_of(std::move(periods)) - double{usual.step_ns});
  }
  return told;
}

}  // namespace cgx::scheduler
