// Machines of a job differ: what each says of itself, and what a search goes by then. It goes by a
// machine that takes for everything as long as the slowest does, and whose gradients come last, so
// that no plan is promised what one of them cannot keep.
//
// Pure.
#pragma once

#include <span>
#include <vector>

#include "scheduler/planners/fit.h"
#include "scheduler/planners/plan_times.h"

namespace cgx::scheduler {

// This machine's, for the coordinator.
wire::MachineProfile profile_of_machine(const MachineCosts& costs, double trip_ns, double share,
                                        const PlanTimes& times);

// The question as its other machines have it, too (SurveyQuestion::others).
SurveyQuestion by_the_slowest(SurveyQuestion question);

// By tensor, here -> on the machine where it comes last. What others say are the first gradient and
// the last; between them they come as they do here.
void delay_to_the_latest(const SurveyQuestion& question, std::vector<double>& arrivals);

}  // namespace cgx::scheduler
