// What else a job could run: plans that follow from a policy, as long as the timeline says they
// would take. The timeline is fitted to steps that were measured: how fast each codec's arithmetic is
// here, how much longer all work takes than it should, and a link so slow that the plan that runs
// takes what it took. With one plan seen, whatever cannot be told apart counts as the link's. So a
// survey names candidates, in order of promise; a trial decides.
//
// Owned by one thread; a survey goes on where it stopped.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

// What a plan took in a step.
struct SeenPlan {
  FactsPtr plan;
  double arithmetic_ns = 0;
  double step_ns = 0;  // beside the plan that runs; 0: things were different
};

struct SurveyQuestion {
  FactsPtr running;                      // its policy is asked
  StepSample measured;                   // a usual step under it
  std::vector<SeenPlan> seen;            // others, of the same table
  std::vector<std::vector<Group>> lost;  // trials against it: no candidates
  std::vector<uint32_t> order;
  std::vector<CodecSpec> ceilings;  // as PlanInputs::ceilings
  uint32_t machines = 1;
  uint64_t slab_bytes = 0;
  double trip_ns = 0;                         // one way
  double share = 0;                           // as Conditions::share
  std::shared_ptr<const MachineCosts> costs;  // of this lane, on some machine
};

struct Candidate {
  std::string name;  // "choose: 40 fp32 in 3 groups", "maxmin:4,bucket=512"
  std::vector<Group> groups;
  double step_ns = 0;   // predicted, from the first gradient on
  bool bypass = false;  // compresses nothing that a rule does not
};

struct Survey {
  Conditions conditions;    // as fitted
  double arithmetic = 1;    // of the plan that runs, as a multiple of what its codecs should take
  double crowd = 1;         // all work of the daemon likewise: waiting for cores, the kernel
  double running_ns = 0;    // predicted of the plan that runs: what was measured, if it can be
  uint32_t trials_max = 3;  // of a search
  // Shortest first, but the bypass last; none is the plan that runs. One whose time nobody predicts
  // has none.
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
  SurveyPtr survey() const;  // REQUIRES: done

 private:
  struct State;
  explicit Surveyor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All of it at once.
Result<SurveyPtr> make_survey(SurveyQuestion question);

}  // namespace cgx::scheduler
