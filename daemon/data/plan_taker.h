// Where the planner agent's answers go.
#pragma once

#include "daemon/base/unique_function.h"

namespace cgx::daemon {

// Implemented by the data agent; called on any thread, may wait for room.
class PlanTaker {
 public:
  virtual ~PlanTaker() = default;
  // Runs `answer` between two rounds.
  virtual void take_plan(UniqueFunction<void()> answer) = 0;
};

}  // namespace cgx::daemon
