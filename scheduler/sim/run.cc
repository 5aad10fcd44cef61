#include "scheduler/sim/run.h"

#include <set>

#include "kernels/codec.h"
#include "scheduler/sim/lines.h"

namespace cgx::scheduler::sim {
namespace {

constexpr double kQuickFrames = 150'000;  // of all machines in a step: some seconds

double frames_of(const Run& run) {
  double frames = 0;
  for (const LaneTimes& group : run.timeline.times) frames += group.sent_frames;
  return frames * run.plan.machines;
}

}  // namespace

Result<Run> run(const Scene& scene, const Policy& policy, Planner planner, Core core) {
  const Model& model = scene.model;
  const PlanInputs inputs{.table = model.table,
                          .policy = policy,
                          .epoch = 1,
                          .order = model.order,
                          .machines = scene.machines};
  Run run{.forward_ns = model.forward_ns, .compute_ns = model.compute_ns()};
  CGX_ASSIGN_OR_RETURN(Proposal proposal, propose(planner, {.inputs = inputs,
                                                            .arrival_ns = model.arrival_ns,
                                                            .conditions = scene.conditions}));
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
