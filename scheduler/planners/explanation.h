// What the choice for one tensor costs in a step, and what others would: on the timeline, with what
// was measured of the job. Asked by operators; decides nothing.
//
// Pure.
#pragma once

#include <vector>

#include "scheduler/planners/fit.h"

namespace cgx::scheduler {

struct PricedChoice {
  CodecSpec codec;
  Collective collective = Collective::kScatter;  // of the tensor's group
  double step_ns = 0;                            // predicted of a step, all else as it runs
  double daemon_ns = 0;                          // of one daemon's work in it
  uint64_t sent_bytes = 0;                       // of one machine, all tensors
};

struct Explanation {
  double measured_ns = 0;  // a usual step, from its first gradient on
  PricedChoice chosen;
  std::vector<PricedChoice> others;  // shortest step first
  bool by_default = false;           // else a rule, a pin, its size or its type has decided
};
// REQUIRES: question.running and question.costs. NOT_FOUND names a codec without costs.
Result<Explanation> explain(const SurveyQuestion& question, uint32_t tensor);

}  // namespace cgx::scheduler
