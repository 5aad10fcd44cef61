#include "scheduler/planners/job_profile.h"

#include <algorithm>
#include <utility>

#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {
namespace {

// All but the fit.
JobProfile profile_of(const SurveyQuestion& question) {
  const PlanFacts& running = *question.running;
  JobProfile profile{.step = question.measured,
                     .menu = menu_of(running.policy),
                     .tensors = running.table,
                     .fit = {}};
  const auto add = [&](const CodecSpec& spec) {
    const auto found = std::find(profile.menu.begin(), profile.menu.end(), spec);
    if (found == profile.menu.end()) profile.menu.push_back(spec);
  };
  add(running.policy.default_codec);
  for (const Group& group : running.plan.groups) {
    for (const Segment& segment : group.segments) add(segment.spec);
  }
  for (const SeenPlan& seen : question.seen) profile.others_seen += seen.step_ns > 0;
  profile.others_heard = static_cast<uint32_t>(question.others.size());
  profile.left_out = question.left_out;
  return profile;
}

}  // namespace

Result<ProfileSearch> ProfileSearch::create(const SurveyQuestion& question) {
  JobProfile profile = profile_of(question);
  CGX_ASSIGN_OR_RETURN(FitSearch fitting,
                       FitSearch::create(question, profile.menu, arrivals_of(question)));
  return ProfileSearch(std::move(profile), std::move(fitting));
}

bool ProfileSearch::work(uint64_t evaluations) {
  if (found_) return true;
  if (!fitting_.work(evaluations)) return false;
  const Result<Fit>& fitted = fitting_.found();
  if (fitted.ok()) profile_.fit = *fitted;
  found_ = fitted.ok() ? Result<JobProfile>(profile_) : Result<JobProfile>(fitted.status());
  return true;
}

}  // namespace cgx::scheduler
