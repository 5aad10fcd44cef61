// A step on the timeline: a model under a policy on so many machines. Thread rule: pure functions.
#pragma once

#include <string>

#include "scheduler/planners/proposal.h"
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

  double step_ns() const { return forward_ns + timeline.step_ns(); }
  // What the machines do together, of what as many would do if exchanging cost nothing.
  double scaling() const { return compute_ns / step_ns(); }
};
Result<Run> run(const Scene& scene, const Policy& policy, Planner planner);

// "12 tensors, 4.1 MB, maxmin:4 + fp32, allgather"
std::string group_text(const Group& group, const TensorTable& table);

}  // namespace cgx::scheduler::sim
