// The timeline fitted to steps that were measured: how fast each codec's arithmetic is here, how
// much longer all other work takes than it should, how long the way is, and a link so slow that
// plans take what they took. With one plan seen, what cannot be told apart counts as the link's.
//
// What was seen decides alone. Owned by one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/machine_profile.h"
#include "scheduler/exchange/plan_facts.h"
#include "scheduler/planners/step_meter.h"
#include "scheduler/planners/timeline.h"

namespace cgx::scheduler {

// What a plan took in a step.
struct SeenPlan {
  FactsPtr plan;
  double arithmetic_ns = 0;
  double step_ns = 0;  // beside the plan that runs; 0: things were different
  double busy_ns = 0;  // as StepSample's
};

// What is known of a job that runs, and of what a search has found out.
struct SurveyQuestion {
  FactsPtr running;                      // its policy is asked
  StepSample measured;                   // a usual step under it
  std::vector<SeenPlan> seen;            // others, of the same table
  std::vector<std::vector<Group>> lost;  // trials against it: no candidates
  // Steps have become shorter, or answers faster: where the link does not hold the plan that runs
  // up, nobody knows how fast it is now, and it counts as fast.
  bool faster = false;
  std::vector<uint32_t> order;
  std::vector<CodecSpec> ceilings;  // as PlanInputs::ceilings
  uint32_t machines = 1;
  uint32_t sites_each = 0;  // as PlanInputs::sites_each
  uint64_t slab_bytes = 0;
  double trip_ns = 0;                         // one way
  double share = 0;                           // as Conditions::share
  std::shared_ptr<const MachineCosts> costs;  // of this lane, on some machine
  double between_ns = 0;                      // from a step's end to the next one's first gradient
  // What other machines say of themselves; the slowest counts (slowest_machine.h).
  std::vector<wire::MachineProfile> others = {};
  std::string left_out = {};  // those that said nothing, and why, for people; empty: none
};

struct Fit {
  Conditions conditions;
  double arithmetic = 1;  // of the plan that runs, as a multiple of what its codecs should take
  // What the daemon does beside arithmetic, likewise: waiting for cores, the kernel. Of operations,
  // tensors and frames, where it was timed; else as much as explains steps best, of bytes and
  // codecs, too.
  double crowd = 1;
  double trips = 1;       // of the trip that was asked with, so much is the way's
  double running_ns = 0;  // predicted of the plan that runs: what was measured, if it can be
  uint64_t running_bytes = 0;
};
// More take seconds. Some passes over all tensors of the plans that were seen come first, in one
// piece; then a search goes on where it stopped.
constexpr size_t kFittedGroupsMax = 4096;

class FitSearch {
 public:
  // REQUIRES: question.running and question.costs. `arrivals`: by tensor.
  static Result<FitSearch> create(const SurveyQuestion& question, std::span<const CodecSpec> menu,
                                  std::span<const double> arrivals);
  FitSearch(FitSearch&&) noexcept;
  ~FitSearch();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  const Result<Fit>& found() const;  // REQUIRES: done

 private:
  struct State;
  explicit FitSearch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A slice of a fit that comes before other work. True: there was none left, `fitted` is complete.
Result<bool> finish_fit(std::optional<FitSearch>& fitting, uint64_t evaluations, Fit& fitted);
std::vector<double> arrivals_of(const SurveyQuestion& question);  // by tensor

}  // namespace cgx::scheduler
