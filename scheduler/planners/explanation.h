// What the choice for one tensor costs in a step, and what others would: on the timeline, with what
// was measured of the job. Asked by operators; decides nothing.
//
// Owned by one thread; goes on where it stopped.
#pragma once

#include <memory>
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

class ExplanationSearch {
 public:
  // REQUIRES: question.running and question.costs, and a tensor of its table. NOT_FOUND, here or as
  // the answer, names a codec without costs.
  static Result<ExplanationSearch> create(SurveyQuestion question, uint32_t tensor);
  ExplanationSearch(ExplanationSearch&&) noexcept;
  ~ExplanationSearch();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  const Result<Explanation>& answer() const;  // REQUIRES: done

 private:
  struct State;
  explicit ExplanationSearch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cgx::scheduler
