// What a step of a running job would take under another policy, or on another number of machines:
// on the timeline, with what was measured of the job. Links are as long and as fast, trainers as
// fast, as they are now. Asked by operators; decides nothing.
//
// Owned by one thread; goes on where it stopped.
#pragma once

#include <memory>
#include <string>

#include "scheduler/planners/fit.h"

namespace cgx::scheduler {

struct WhatIfQuestion {
  SurveyQuestion job;
  Policy policy;          // instead of the job's
  uint32_t machines = 2;  // likewise
};

struct WhatIf {
  double measured_ns = 0;  // a usual step of the job, from its first gradient on
  double now_ns = 0;       // the same as it is predicted
  uint64_t now_bytes = 0;  // that one machine sends
  double step_ns = 0;      // under the policy, on so many machines
  double backward_ns = 0;  // of that, until the last gradient is there
  uint64_t sent_bytes = 0;
  std::string plan;  // "12 fp32, 149 maxmin:4,bucket=512 in 4 groups"
};

class WhatIfSearch {
 public:
  // REQUIRES: job.running and job.costs. An error: a codec has no cost. That no plan follows from
  // the policy is an answer.
  static Result<WhatIfSearch> create(WhatIfQuestion question);
  WhatIfSearch(WhatIfSearch&&) noexcept;
  ~WhatIfSearch();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  const Result<WhatIf>& answer() const;  // REQUIRES: done

 private:
  struct State;
  explicit WhatIfSearch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cgx::scheduler
