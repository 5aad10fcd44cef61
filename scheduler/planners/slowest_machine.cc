#include "scheduler/planners/slowest_machine.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace cgx::scheduler {
namespace {

using wire::MachineProfile;

MachineProfile::Curve told(const Curve& curve) {
  return {told_ns(curve.floor_ns), told_ns(curve.ns_per_byte)};
}

Curve curve_of(const MachineProfile::Curve& curve) {
  return {double{curve.floor_ns}, double{curve.ns_per_byte}};
}

MachineCosts costs_of(const MachineProfile& profile) {
  MachineCosts costs;
  for (const MachineProfile::Codec& codec : profile.codecs) {
    costs.codecs.push_back({codec.spec, curve_of(codec.encode), curve_of(codec.decode)});
  }
  costs.copy_ns_per_byte = double{profile.copy_ns_per_byte};
  costs.operation_ns = double{profile.operation_ns};
  costs.segment_ns = double{profile.segment_ns};
  costs.frame_ns = double{profile.frame_ns};
  costs.wire_ns_per_byte = double{profile.wire_ns_per_byte};
  return costs;
}

void raise(double& to, double other) {
  to = std::max(to, other);
}

void raise(Curve& to, const Curve& other) {
  raise(to.floor_ns, other.floor_ns);
  raise(to.ns_per_byte, other.ns_per_byte);
}

// A codec that the other machine does not know stays as it is here.
void raise(MachineCosts& to, const MachineCosts& other) {
  for (CodecCurves& row : to.codecs) {
    CodecSpec spec = row.spec;
    spec.flags &= static_cast<uint8_t>(~CodecSpec::kFeedback);
    const Result<CodecCurves> there = other.curves_of(spec);
    if (!there.ok()) continue;
    raise(row.encode, there->encode);
    raise(row.decode, there->decode);
  }
  raise(to.copy_ns_per_byte, other.copy_ns_per_byte);
  raise(to.operation_ns, other.operation_ns);
  raise(to.segment_ns, other.segment_ns);
  raise(to.frame_ns, other.frame_ns);
  raise(to.wire_ns_per_byte, other.wire_ns_per_byte);
}

const MachineProfile::Plan* times_under(uint64_t epoch, const MachineProfile& profile) {
  for (const MachineProfile::Plan& plan : profile.plans) {
    if (plan.epoch == epoch) return &plan;
  }
  return nullptr;
}

// What was timed of the daemon's work under a plan. The slowest is known only if all have timed it;
// until then the costs that they name count as they are.
struct TimedWork {
  double& arithmetic_ns;
  double& busy_ns;
};

void raise(const TimedWork& to, uint64_t epoch, const std::vector<MachineProfile>& others) {
  if (to.arithmetic_ns <= 0) return;
  double slowest_ns = to.arithmetic_ns;
  double beside_ns = to.busy_ns > to.arithmetic_ns ? to.busy_ns - to.arithmetic_ns : 0;
  for (const MachineProfile& profile : others) {
    const MachineProfile::Plan* const there = times_under(epoch, profile);
    if (there == nullptr || there->arithmetic_ns <= 0) {
      to.arithmetic_ns = to.busy_ns = 0;
      return;
    }
    raise(slowest_ns, double{there->arithmetic_ns});
    if (there->busy_ns <= there->arithmetic_ns) beside_ns = 0;  // it does not know
    if (beside_ns > 0) raise(beside_ns, double{there->busy_ns} - double{there->arithmetic_ns});
  }
  to.arithmetic_ns = slowest_ns;
  to.busy_ns = beside_ns > 0 ? slowest_ns + beside_ns : 0;
}

}  // namespace

MachineProfile profile_of_machine(const MachineCosts& costs, double trip_ns, double share,
                                  const PlanTimes& times) {
  MachineProfile profile{.operation_ns = told_ns(costs.operation_ns),
                         .segment_ns = told_ns(costs.segment_ns),
                         .frame_ns = told_ns(costs.frame_ns),
                         .copy_ns_per_byte = told_ns(costs.copy_ns_per_byte),
                         .wire_ns_per_byte = told_ns(costs.wire_ns_per_byte),
                         .trip_ns = told_ns(trip_ns),
                         .share = static_cast<float>(std::clamp(share, 0.0, 1.0)),
                         .codecs = {},
                         .plans = times.plans()};
  const size_t rows = std::min(costs.codecs.size(), MachineProfile::kCodecsMax);
  for (const CodecCurves& row : std::span(costs.codecs).first(rows)) {
    profile.codecs.push_back({row.spec, told(row.encode), told(row.decode)});
  }
  return profile;
}

SurveyQuestion by_the_slowest(SurveyQuestion question) {
  if (question.others.empty()) return question;
  auto costs = std::make_shared<MachineCosts>(*question.costs);
  for (const MachineProfile& profile : question.others) {
    raise(*costs, costs_of(profile));
    raise(question.trip_ns, double{profile.trip_ns});
    raise(question.share, double{profile.share});
  }
  question.costs = std::move(costs);
  const auto raise_work = [&](uint64_t epoch, double& arithmetic_ns, double& busy_ns) {
    raise(TimedWork{arithmetic_ns, busy_ns}, epoch, question.others);
  };
  StepSample& now = question.measured;
  raise_work(now.epoch, now.arithmetic_ns, now.busy_ns);
  for (SeenPlan& seen : question.seen) {
    raise_work(seen.plan->plan.epoch, seen.arithmetic_ns, seen.busy_ns);
  }
  return question;
}

// Both sides count from the end of the step before, which is about the same moment everywhere. No
// gradient came after the step was complete.
void delay_to_the_latest(const SurveyQuestion& question, std::vector<double>& arrivals) {
  double first_ns = 0, last_ns = 0;
  for (const MachineProfile& profile : question.others) {
    const MachineProfile::Plan* const there = times_under(question.measured.epoch, profile);
    if (there == nullptr) continue;
    const double later_ns = std::max(0.0, double{there->between_ns} - question.between_ns);
    raise(first_ns, later_ns);
    raise(last_ns, later_ns + double{there->last_ns});
  }
  first_ns = std::min(first_ns, question.measured.step_ns);
  last_ns = std::clamp(last_ns, first_ns, question.measured.step_ns);
  if (last_ns <= 0 || arrivals.empty()) return;
  const double span_ns = *std::max_element(arrivals.begin(), arrivals.end());
  for (double& arrival : arrivals) {
    const double passed = span_ns > 0 ? arrival / span_ns : 1;
    raise(arrival, first_ns + passed * (last_ns - first_ns));
  }
}

}  // namespace cgx::scheduler
