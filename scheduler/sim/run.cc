#include "scheduler/sim/run.h"

#include <set>

#include "kernels/codec.h"
#include "scheduler/planners/boundaries.h"
#include "scheduler/planners/choose.h"
#include "scheduler/sim/lines.h"

namespace cgx::scheduler::sim {
namespace {

constexpr uint64_t kSlice = 1 << 20;  // evaluations between looks at whether it is done

template <typename Search>
Result<Proposal> found(const PlannerQuestion& question) {
  CGX_ASSIGN_OR_RETURN(Search search, Search::create(question));
  while (!search.work(kSlice)) {
  }
  return search.proposal();
}

Result<Proposal> proposed(const PlannerQuestion& question, Planner planner) {
  switch (planner) {
    case Planner::kBoundaries:
      return found<Boundaries>(question);
    case Planner::kChoose:
      return found<Choose>(question);
    case Planner::kFixed:
      break;
  }
  CGX_ASSIGN_OR_RETURN(Plan plan, make_plan(question.inputs));
  return Proposal{.groups = std::move(plan.groups)};
}

}  // namespace

Result<Planner> planner_of(const std::string& name) {
  if (name == "fixed") return Planner::kFixed;
  if (name == "boundaries") return Planner::kBoundaries;
  if (name == "choose") return Planner::kChoose;
  return invalid_argument("no planner \"" + name + "\"; there are fixed, boundaries, choose");
}

Result<Run> run(const Scene& scene, const Policy& policy, Planner planner) {
  const Model& model = scene.model;
  const PlanInputs inputs{
      .table = model.table, .policy = policy, .order = model.order, .machines = scene.machines};
  Run run{.forward_ns = model.forward_ns, .compute_ns = model.compute_ns()};
  CGX_ASSIGN_OR_RETURN(
      Proposal proposal,
      proposed({.inputs = inputs, .arrival_ns = model.arrival_ns, .conditions = scene.conditions},
               planner));
  run.exact = proposal.exact;
  CGX_ASSIGN_OR_RETURN(run.plan, make_plan(inputs, std::move(proposal.groups)));
  CGX_ASSIGN_OR_RETURN(run.timeline,
                       timeline_of(run.plan, model.table, model.arrival_ns, scene.conditions));
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
