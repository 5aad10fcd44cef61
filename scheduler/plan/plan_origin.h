// Who wanted a plan, and why: shown to people, and kept with the plan in histories. Nothing is
// decided by it. Pure functions.
#pragma once

#include <string>

#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

struct PlanOrigin {
  std::string who;  // one of those below; empty: nobody has said
  std::string why;
  friend bool operator==(const PlanOrigin&, const PlanOrigin&) = default;
};

inline constexpr char kByCommit[] = "commit";      // the ranks have committed tensors
inline constexpr char kByEarlierRun[] = "kept";    // likewise; an earlier run has found the plan
inline constexpr char kByPolicy[] = "policy";      // an operator
inline constexpr char kByPin[] = "pin";            // likewise, of one tensor
inline constexpr char kByReorder[] = "reorder";    // the order in which gradients come
inline constexpr char kByPlanner[] = "planner";    // the search of mode auto or merge
inline constexpr char kByCeilings[] = "ceilings";  // layerwise or gravac
inline constexpr char kByGuard[] = "guard";        // the guard rail below them
inline constexpr char kByHistory[] = "history";    // a history that is repeated
inline constexpr char kByTerm[] = "term";          // what this machine had missed

// Of an operator's policy in place of another one, with the operator's name and reason.
PlanOrigin origin_of(const Policy& wish, const Policy& before);
// Of a plan that is repeated.
PlanOrigin repeated(const PlanOrigin& recorded);

}  // namespace cgx::scheduler
