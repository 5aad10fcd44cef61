#include "scheduler/sim/run.h"

#include <set>

#include "kernels/codec.h"
#include "scheduler/planners/merge.h"
#include "scheduler/sim/lines.h"

namespace cgx::scheduler::sim {
namespace {

constexpr double kQuickFrames = 150'000;  // of all machines in a step: some seconds

double frames_of(const Run& run) {
  double frames = 0;
  for (const LaneTimes& group : run.timeline.times) frames += group.sent_frames;
  return frames * run.plan.machines;
}

// What mode merge comes to: one candidate after the other on trial, and a faster one stays.
Result<Proposal> merge_on_paper(const PlannerQuestion& question) {
  CGX_ASSIGN_OR_RETURN(Proposal best, proposal_of_policy(question));
  std::vector<std::vector<Group>> lost;
  for (;;) {
    CGX_ASSIGN_OR_RETURN(const std::vector<MergeCandidate> candidates,
                         merge_candidates(question.inputs, best.groups, lost));
    if (candidates.empty()) break;
    CGX_ASSIGN_OR_RETURN(Plan plan, make_plan(question.inputs, candidates.front().groups));
    CGX_ASSIGN_OR_RETURN(Proposal tried, proposal_of_plan(question, std::move(plan)));
    const bool faster = tried.step_ns < best.step_ns;
    lost.push_back(faster ? std::move(best.groups) : std::move(tried.groups));
    if (faster) best = std::move(tried);
  }
  best.exact = false;
  return best;
}

}  // namespace

std::optional<Planner> planner_for(PlanMode mode) {
  switch (mode) {
    case PlanMode::kFixed:
      return Planner::kfixed;
    case PlanMode::kAuto:
      return Planner::kchoose;
    case PlanMode::kMerge:
      return std::nullopt;
  }
  return std::nullopt;
}

Result<Run> run(const Scene& scene, const Policy& policy, std::optional<Planner> planner,
                Core core) {
  const Model& model = scene.model;
  const PlanInputs inputs{.table = model.table,
                          .policy = policy,
                          .epoch = 1,
                          .order = model.order,
                          .machines = scene.machines};
  Run run{.forward_ns = model.forward_ns, .compute_ns = model.compute_ns()};
  const PlannerQuestion question{.inputs = inputs,
                                 .arrival_ns = model.arrival_ns,
                                 .conditions = scene.conditions,
                                 .menu = menu_of(policy)};
  if (!planner) planner = planner_for(policy.mode);
  CGX_ASSIGN_OR_RETURN(Proposal proposal,
                       planner ? propose(*planner, question) : merge_on_paper(question));
  run.exact = proposal.exact;
  CGX_ASSIGN_OR_RETURN(run.plan, make_plan(inputs, std::move(proposal.groups)));
  CGX_ASSIGN_OR_RETURN(run.timeline,
                       timeline_of(run.plan, model.table, model.arrival_ns, scene.conditions));
  const bool quick = can_engines(run.plan).ok() && frames_of(run) <= kQuickFrames;
  if (core == Core::kTimeline || (core == Core::kAuto && !quick)) return run;
  CGX_ASSIGN_OR_RETURN(
      run.engines, step_of_engines({model, scene.machines, scene.conditions}, policy, run.plan));
  return run;
}

std::string group_text(const Group& group, const TensorTable& table) {
  uint64_t bytes = 0;
  std::set<std::string> codecs;
  for (const Segment& segment : group.segments) {
    bytes += segment_bytes(segment, table);
    codecs.insert(kernels::to_string(segment.spec));
  }
  std::string text = std::to_string(group.segments.size()) +
                     (group.segments.size() == 1 ? " tensor, " : " tensors, ") +
                     bytes_text(static_cast<double>(bytes)) + ", ";
  std::string all;
  for (const std::string& codec : codecs) all += (all.empty() ? "" : " + ") + codec;
  return text + all + ", " + collective_name(group.way.collective);
}

}  // namespace cgx::scheduler::sim
