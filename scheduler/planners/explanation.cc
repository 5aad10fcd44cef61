#include "scheduler/planners/explanation.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {
namespace {

// Plans that differ from the running one in what a tensor, or its group, does.
class Pricing {
 public:
  Pricing(const SurveyQuestion& question, std::vector<double> arrivals, Fit fit, uint32_t tensor)
      : question_(question),
        arrivals_(std::move(arrivals)),
        fit_(std::move(fit)),
        tensor_(tensor) {}

  // With another codec for all pieces of the tensor, or another way for all groups that hold one.
  // Null: each group's own way.
  Result<PricedChoice> price(const CodecSpec& codec, const Way* way) const {
    Plan plan = question_.running->plan;
    for (Group& group : plan.groups) change(codec, way, group);
    CGX_ASSIGN_OR_RETURN(const Timeline timeline,
                         timeline_of(plan, *question_.running->table, arrivals_, fit_.conditions));
    const Way& first = plan.groups[question_.running->first_group_of(tensor_)].way;
    return PricedChoice{codec, first.collective, timeline.step_ns(), timeline.after.work_ns,
                        timeline.sent_bytes};
  }

 private:
  void change(const CodecSpec& codec, const Way* way, Group& group) const {
    bool holds = false;
    for (Segment& segment : group.segments) {
      if (segment.tensor != tensor_) continue;
      segment.spec = codec;
      holds = true;
    }
    if (!holds) return;
    if (way != nullptr) group.way = *way;
    fit_group(question_.running->policy, group, question_.machines);
  }

  const SurveyQuestion& question_;
  const std::vector<double> arrivals_;
  const Fit fit_;
  const uint32_t tensor_;
};

// The tensor's own codec, the policy's, and those of the menu.
std::vector<CodecSpec> codecs_for(const PlanFacts& running, uint32_t tensor) {
  const Policy& policy = running.policy;
  std::vector<CodecSpec> codecs = {running.spec_of(tensor)};
  if (!dtype_is_small_float((*running.table)[tensor].dtype)) return codecs;  // others take none
  std::vector<CodecSpec> others = menu_of(policy);
  others.push_back(policy.default_codec);
  for (const CodecSpec& each : others) {
    const bool known = std::find(codecs.begin(), codecs.end(), each) != codecs.end();
    // Pieces of a cut tensor are counted in buckets.
    if (!known && (policy.segment_bytes == 0 || each.bucket == codecs[0].bucket)) {
      codecs.push_back(each);
    }
  }
  return codecs;
}

// Beside that of its group the ones that suit any group, unless the policy names one.
std::vector<Way> other_ways_for(const SurveyQuestion& question, uint32_t tensor) {
  const PlanFacts& running = *question.running;
  const Way& own = running.plan.groups[running.first_group_of(tensor)].way;
  std::vector<Way> ways;
  if (running.policy.collective != CollectiveWish::kAuto || question.machines < 2) return ways;
  for (size_t i = 0; i < std::size(kCollectives); ++i) {
    const auto other = static_cast<Collective>(i);
    if (other == own.collective || row_of(other).in_racks) continue;
    ways.push_back(choose_way({.wish = wish_for(other),
                               .machines = question.machines,
                               .rack_machines = running.policy.rack_machines},
                              {}, *running.table));
  }
  return ways;
}

}  // namespace

Result<Explanation> explain(const SurveyQuestion& question, uint32_t tensor) {
  const PlanFacts& running = *question.running;
  const std::vector<CodecSpec> codecs = codecs_for(running, tensor);
  std::vector<double> arrivals = arrivals_of(question);
  CGX_ASSIGN_OR_RETURN(Fit fitted, fit(question, codecs, arrivals));
  const Pricing pricing(question, std::move(arrivals), std::move(fitted), tensor);
  Explanation explanation{.measured_ns = question.measured.step_ns, .others = {}};
  const auto add = [&](const CodecSpec& codec, const Way* way) -> Status {
    CGX_ASSIGN_OR_RETURN(const PricedChoice priced, pricing.price(codec, way));
    explanation.others.push_back(priced);
    return {};
  };
  CGX_ASSIGN_OR_RETURN(explanation.chosen, pricing.price(codecs[0], nullptr));
  for (const CodecSpec& codec : std::span(codecs).subspan(1)) {
    CGX_RETURN_IF_ERROR(add(codec, nullptr));
  }
  for (const Way& way : other_ways_for(question, tensor)) {
    CGX_RETURN_IF_ERROR(add(codecs[0], &way));
  }
  std::stable_sort(explanation.others.begin(), explanation.others.end(),
                   [](const auto& one, const auto& other) { return one.step_ns < other.step_ns; });
  DecisionsPtr decisions = running.decisions;
  if (decisions == nullptr) {
    CGX_ASSIGN_OR_RETURN(decisions, Decisions::create(running.policy, *running.table));
  }
  explanation.by_default = decisions->by_default(tensor);
  return explanation;
}

}  // namespace cgx::scheduler
