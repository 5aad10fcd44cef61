// What else a job could run: plans that follow from a policy, as long as the timeline says they
// would take, fitted to steps that were measured (scheduler/planners/fit.h). A survey names
// candidates, in order of promise; a trial decides.
//
// Owned by one thread; a survey goes on where it stopped.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/planners/fit.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/proposal.h"
#include "scheduler/planners/step_meter.h"

namespace cgx::scheduler {

// How many steps a search takes its time for.
struct SearchPace {
  uint32_t warm_up = 2;           // after a switch: caches, pools
  uint32_t samples = 6;           // until it is known what a step takes
  uint32_t block = 4, pairs = 6;  // of a trial
};

struct Candidate {
  std::string name;  // "choose: 40 fp32 in 3 groups", "maxmin:4,bucket=512"
  std::vector<Group> groups;
  double step_ns = 0;  // predicted, from the first gradient on
  uint64_t sent_bytes = 0;
  bool bypass = false;  // compresses nothing that a rule does not
};

struct Survey : Fit {
  std::string left_out;    // as SurveyQuestion's
  std::string unsearched;  // why codecs were not looked for one by one; empty: they were
  uint32_t trials_max = 3, steps_max = 48;  // of a search
  // Shortest first, but the bypass last; none is the plan that runs. Where only one compressed plan
  // was seen the bypass comes first, whatever it is predicted to take. Where nobody predicts times
  // they have none, and what sends least comes first.
  std::vector<Candidate> candidates;
};
using SurveyPtr = std::shared_ptr<const Survey>;

class Surveyor {
 public:
  // REQUIRES: question.running and question.costs. An error says what stands in the way.
  static Result<Surveyor> create(SurveyQuestion question);
  Surveyor(Surveyor&&) noexcept;
  ~Surveyor();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  Result<SurveyPtr> survey() const;  // REQUIRES: done

 private:
  struct State;
  explicit Surveyor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All of it at once.
Result<SurveyPtr> make_survey(SurveyQuestion question);

}  // namespace cgx::scheduler
