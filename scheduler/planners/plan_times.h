// What usual steps took on this machine under each of the last plans: for a search elsewhere, which
// asks for it. Owned by one communicator; reads no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/wire/machine_profile.h"
#include "scheduler/planners/step_meter.h"

namespace cgx::scheduler {

class PlanTimes {
 public:
  // A step is complete. `usual`: as Pilot::completed()'s. The first step under a plan warms caches
  // up, and does not count.
  void take(const StepSample& sample, bool usual);
  std::vector<wire::MachineProfile::Plan> plans() const;  // of each plan a usual step

 private:
  struct Step {
    double period_ns = 0;
    wire::MachineProfile::Plan times;
  };
  struct OfPlan {
    uint64_t epoch = 0;
    std::vector<Step> steps;  // the last ones that counted
  };
  OfPlan& of(uint64_t epoch);

  uint64_t last_epoch_ = 0;
  std::vector<OfPlan> plans_;  // the one that was seen last comes last
};

// As a profile has it: at least 0, at most an hour.
float told_ns(double ns);

}  // namespace cgx::scheduler
