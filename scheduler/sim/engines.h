// A step of the real engines, frame by frame: a cluster in one thread over a loopback network, in
// virtual time, with memory that nobody touches.
//
// Each machine (costed_machine) has one rank, one core for its daemon, and one full-duplex port:
// what it sends leaves one frame after the other at the link's rate, and what it receives comes in
// likewise. The engines themselves agree on the plan. Deterministic. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/planners/costs.h"
#include "scheduler/sim/bars.h"
#include "scheduler/sim/model.h"

namespace cgx::scheduler::sim {

constexpr uint32_t kEnginesMax = 64;  // machines: more take minutes

// A step in the steady state.
struct EngineStep {
  double step_ns = 0;       // from its beginning to the next one's
  double work_ns = 0;       // of a daemon
  uint64_t sent_bytes = 0;  // of frames with gradients, by the machine that sends most
  std::vector<Bar> bars;    // of machine 0
};
struct EngineScene {
  const Model& model;
  uint32_t machines = 2;
  const Conditions& conditions;
};
// Whether the engines can play it at all, or why not.
Status can_engines(const Plan& plan);
Result<EngineStep> step_of_engines(const EngineScene& scene, const Policy& policy,
                                   const Plan& plan);

}  // namespace cgx::scheduler::sim
