// The planner `merge`, after MergeComp: how much travels together, found on real steps. It asks for
// no cost and trusts no model: each candidate is tried against the plan that runs
// (scheduler/planners/pilot.h).
//
//   sizes      group_bytes times powers of two; a bisection from the size that runs: first all that
//              are far off, sixteen times apart, then its neighbours, the nearest last
//   last group what is sent after the last gradient nobody hides: in the end, half of it apart
//
// What was tried and lost says how far a search has come, so it has no state. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "scheduler/planners/planner.h"

namespace cgx::scheduler {

struct MergeCandidate {
  std::string name;  // "groups of 1 MiB"
  std::vector<Group> groups;
};
// The next ones to try against `running`, best first; none: the search is over.
Result<std::vector<MergeCandidate>> merge_candidates(const PlanInputs& inputs,
                                                     const std::vector<Group>& running,
                                                     std::span<const std::vector<Group>> lost);

}  // namespace cgx::scheduler
