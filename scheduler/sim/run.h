// A step on paper: a model under a policy on so many machines, on the timeline and, where asked
// for, by the engines. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>

#include "scheduler/planners/proposal.h"
#include "scheduler/sim/engines.h"
#include "scheduler/sim/model.h"

namespace cgx::scheduler::sim {

struct Scene {
  const Model& model;
  uint32_t machines = 2;
  Conditions conditions;
};

struct Run {
  std::string name;
  Plan plan;
  Timeline timeline;
  double forward_ns = 0, compute_ns = 0;
  bool exact = true;  // nothing the planner may propose is shorter, to its tolerance

  std::optional<EngineStep> engines;  // the same step by the engines, which then counts

  double step_ns() const { return engines ? engines->step_ns : timeline_ns(); }
  double timeline_ns() const { return forward_ns + timeline.step_ns(); }
  double work_ns() const { return engines ? engines->work_ns : timeline.after.work_ns; }
  uint64_t sent_bytes() const { return engines ? engines->sent_bytes : timeline.sent_bytes; }
  // What the machines do together, of what as many would do if exchanging cost nothing.
  double scaling() const { return compute_ns / step_ns(); }
};
// Who plays the step.
enum class Core : uint8_t {
  kTimeline,
  kEngines,  // an error where they cannot
  kAuto,     // the engines where they can within seconds
};
// The planner whose plans a mode comes to; none: it searches on steps, as the timeline plays them.
std::optional<Planner> planner_for(PlanMode mode);
// Without a planner: as the policy's mode plans, once its search is over. Every plan tried is worth
// here what the timeline says.
Result<Run> run(const Scene& scene, const Policy& policy, std::optional<Planner> planner,
                Core core = Core::kTimeline);

// "12 tensors, 4.1 MB, maxmin:4 + fp32, allgather"
std::string group_text(const Group& group, const TensorTable& table);

}  // namespace cgx::scheduler::sim
