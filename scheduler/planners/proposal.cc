#include "scheduler/planners/proposal.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "kernels/codec.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {
std::vector<CodecSpec> default_menu() {
  return {{.codec = 0, .bucket = 512},
          {.codec = 3, .bits = 8, .bucket = 512},
          {.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512}};
}

std::vector<CodecSpec> menu_of(const Policy& policy) {
  return policy.menu.empty() ? default_menu() : policy.menu;
}

std::vector<CodecSpec> uniform_levels(const Policy& policy, const std::vector<CodecSpec>& menu) {
  std::vector<CodecSpec> levels = {policy.default_codec};
  for (const CodecSpec& each : menu) {
    const bool known = std::find(levels.begin(), levels.end(), each) != levels.end();
    const bool weaker = weight_of(each) > weight_of(policy.default_codec);
    if (!known && weaker) levels.push_back(each);
  }
  return levels;
}

std::vector<CodecSpec> levels_under(const Policy& policy, const std::vector<CodecSpec>& menu) {
  std::vector<CodecSpec> levels = uniform_levels(policy, menu);
  if (policy.segment_bytes == 0) return levels;
  const uint32_t bucket = policy.default_codec.bucket;
  std::erase_if(levels, [bucket](const CodecSpec& each) { return each.bucket != bucket; });
  return levels;
}

Result<Proposal> proposal_of_plan(const PlannerQuestion& question, Plan plan) {
  CGX_ASSIGN_OR_RETURN(
      const Timeline timeline,
      timeline_of(plan, question.inputs.table, question.arrival_ns, question.conditions));
  return Proposal{std::move(plan.groups), timeline.step_ns(), timeline.after.work_ns};
}

Result<Proposal> proposal_of_policy(const PlannerQuestion& question) {
  CGX_ASSIGN_OR_RETURN(Plan plan, make_plan(question.inputs));
  return proposal_of_plan(question, std::move(plan));
}

const CodecSpec& weaker_of(const CodecSpec& one, const CodecSpec& other) {
  return weight_of(other) > weight_of(one) ? other : one;
}

Segment at_level(const PlannedSegment& segment, const std::vector<CodecSpec>& levels,
                 uint32_t level, const Policy& policy) {
  Segment made = segment.segment;
  if (segment.by_default && level > 0) made.spec = weaker_of(made.spec, levels[level]);
  made.rack_spec = rack_spec_of(policy, made.spec);
  return made;
}

Result<Proposal> propose_fixed(const PlannerQuestion& question) {
  CGX_ASSIGN_OR_RETURN(Plan plan, make_plan(question.inputs));
  return Proposal{.groups = std::move(plan.groups)};
}

Result<Proposal> propose(Planner planner, const PlannerQuestion& question) {
  constexpr Result<Proposal> (*kPropose[])(const PlannerQuestion&) = {
#define X(name, help) propose_##name,
#include "scheduler/planners/planners.def"
#undef X
  };
  return kPropose[static_cast<size_t>(planner)](question);
}

Result<Planner> planner_of(const std::string& name) {
  constexpr std::string_view kNames[] = {
#define X(name, help) #name,
#include "scheduler/planners/planners.def"
#undef X
  };
  std::string all;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Planner>(i);
    all += (all.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  return invalid_argument("no planner \"" + name + "\"; there are " + all);
}

std::string codecs_text(const std::vector<Group>& groups) {
  std::map<std::string, size_t> counts;
  for (const Group& group : groups) {
    for (const Segment& segment : group.segments) ++counts[kernels::to_string(segment.spec)];
  }
  std::string text;
  for (const auto& [codec, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + codec;
  }
  return text + " in " + std::to_string(groups.size()) +
         (groups.size() == 1 ? " group" : " groups");
}

}  // namespace cgx::scheduler
