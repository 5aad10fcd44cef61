// What was measured of a job and fitted to it, as a search for plans goes by it: steps, when
// gradients are there, what the daemon's work takes here, the link. Asked by operators; decides
// nothing.
//
// Pure.
#pragma once

#include "scheduler/planners/fit.h"

namespace cgx::scheduler {

struct JobProfile {
  StepSample step;                   // a usual one
  std::vector<CodecSpec> menu;       // what plans are made of, and what runs
  std::vector<std::string> tensors;  // as step.arrival_ns
  Fit fit;
  uint32_t others_heard = 0;  // machines; the fit is of what the slowest takes
  std::string left_out = {};  // as SurveyQuestion's
  uint32_t others_seen = 0;   // plans beside the one that runs, from the same minutes
};
// REQUIRES: question.running and question.costs.
Result<JobProfile> profile_of(const SurveyQuestion& question);

}  // namespace cgx::scheduler
