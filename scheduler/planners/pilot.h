// Keeps a job on the best plan that measurement finds: what `mode: auto` does.
//
//   measuring  steps under the plan that runs; at first gradients travel uncompressed
//   surveying  what else could run, and how long it would take (scheduler/planners/survey.h)
//   proposing  a candidate, on trial against the plan that runs
//   trying     both alternate, in blocks of steps (Trial), until there is a verdict
//   adopting   the faster one is proposed for good; then the next candidate
//   settled    until steps take longer or shorter for a while, or links become plainly faster than
//              they were when the plan was chosen: then it has plans surveyed anew; or until time
//              has paid for trials that would have cost too much (TrialAccount)
//
// On the coordinator alone; other machines see plans. Reads no clock. Whatever plan an operator, a
// commit or new ceilings bring comes first. The pilot begins again, but where table and policy ask
// for the same search: then it keeps what it has learned, and looks for what is worth a trial
// beside the new plan. Owned by one communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/plan_note.h"
#include "scheduler/planners/survey.h"
#include "scheduler/planners/trial_account.h"
#include "scheduler/planners/verdict.h"
#include "scheduler/planners/wanted.h"

namespace cgx::scheduler {

class PilotPort {
 public:
  virtual ~PilotPort() = default;
  using PlanPtr = std::shared_ptr<const PreparedPlan>;

  // No plan is being agreed on or waits for its step, nor will one soon.
  virtual bool may_propose() const = 0;
  // What a search has learned so far.
  struct Known {
    StepSample measured;  // a usual step under the plan in force
    std::vector<SeenPlan> seen;
    std::vector<std::vector<Group>> lost;
    bool faster = false;    // as SurveyQuestion's
    double between_ns = 0;  // likewise
  };
  // Answers come later or at once; one that is not wanted any more may come, too.
  virtual void survey(Known known, Wanted wanted,
                      std::function<void(const Result<SurveyPtr>&)> answer) = 0;
  struct Agreed {
    PlanPtr plan;
    uint64_t first_step = 0;
  };
  virtual void propose(std::vector<Group> groups, const Trial& trial,
                       std::function<void(const Result<Agreed>&)> answer) = 0;
  virtual void report(const PlanNote& note) = 0;
};

class Pilot {
 public:
  Pilot(PilotPort& port, const SearchPace& pace) : port_(port), pace_(pace) {}

  // A step is complete; `base` is the plan in force, the one that a trial is against. `usual`: no
  // codec's loss was measured in it, nor a result compared.
  void completed(const PilotPort::PlanPtr& base, StepSample sample, bool usual);
  // Between steps: asks for what is due, if nothing has come since the last step.
  void work(const PilotPort::PlanPtr& base);

  // Plans are no longer searched: lets go of all that it holds.
  void stop();

  // Somebody else has found out that a link became faster.
  void hear_of_faster_link() { told_of_faster_link_ = stage_ == Stage::kSettled; }

  const std::vector<PlanNote>& notes() const { return notes_; }  // newest last, at most 32
  const std::vector<SeenPlan>& seen() const { return seen_; }    // as PilotPort::Known's
  const char* doing() const;                                     // empty: nothing
  bool settled() const { return stage_ == Stage::kSettled; }
  TrialTime trial_time() const;
  bool idle() const {  // nothing is being tried or looked for
    return stage_ == Stage::kOff || stage_ == Stage::kMeasuring || stage_ == Stage::kSettled;
  }

 private:
  enum class Stage : uint8_t {
    kOff,
    kMeasuring,
    kSurveying,
    kProposing,
    kTrying,
    kAdopting,
    kSettled,
  };
  struct Usual {  // of a step
    double period_ns = 0, arithmetic_ns = 0;
    double quickest_ns = 0;  // the shortest period
    double between_ns = 0;   // from the end of a step to the next one's first gradient
  };
  struct Tried {
    PilotPort::Agreed agreed;  // its plan is let go of when the trial has been decided
    FactsPtr facts;
    TrialScore score;
    Usual before;                              // of the plan beside it
    std::vector<StepSample> samples, besides;  // of steps that counted: its own, the other's
    int besides_off = 0;                       // of the latter in a row, as Pilot::steps_off_
    uint32_t refused = 0;                      // how often keeping it was
    uint64_t ask_again = 0;                    // no proposal before this step is complete
    // From here on no machine has memory for it.
    uint64_t end() const { return agreed.first_step + facts->plan.trial.steps(); }
  };

  void begin(const PilotPort::PlanPtr& base);
  bool may_follow(const PreparedPlan& base) const;
  void follow(const PilotPort::PlanPtr& base);
  void go_on_with(const PilotPort::PlanPtr& base);
  // Why plans are looked for again.
  enum class Cause : uint8_t {
    kNone,
    kLonger,
    kShorter,
    kLoad,
    kFasterLink,
    kCalm,
    kOtherPlan,
    kLeftOver,
    kPaidFor
  };
  static const char* text_of(Cause cause);
  // Nothing has changed since the search before, which had no steps or no time for all of it.
  static bool goes_on(Cause cause) { return cause == Cause::kLeftOver || cause == Cause::kPaidFor; }
  void begin_search(Cause cause);
  void forget_times(Cause cause);
  void forget_lost(Cause cause);
  void on_survey(const Result<SurveyPtr>& survey);
  void note_limits();
  const Candidate* worth_trying() const;  // null: none
  bool may_try_more() const;
  bool leaves_something() const;
  double promised(const Candidate& candidate) const;
  double believed(const Candidate& candidate) const;
  uint32_t pairs_left() const;  // of blocks, in which this search may try a plan
  const Candidate* most_different() const;
  void propose();
  void on_trial_agreed(const Result<PilotPort::Agreed>& agreed);
  void on_trial_refused(const Status& why);
  void try_step(StepSample sample, bool usual);
  void count(StepSample sample, bool tries);
  void charge(const StepSample& sample, bool usual);
  bool alternates_in_vain() const;
  void put_off();
  bool changed_meanwhile() const;
  bool refuted() const;
  bool worth_a_switch() const;
  bool amid_load() const { return origin_ == Cause::kLoad; }  // others have the cores
  bool taken_for_fast() const {  // the link, as SurveyQuestion's `faster`
    return origin_ == Cause::kShorter || origin_ == Cause::kFasterLink;
  }
  bool restless() const;
  void count_unrest();
  void end_trial(bool faster, bool stopped);
  void on_change();
  void note_trial(std::string verdict);
  void remember(bool lost);
  void see(SeenPlan plan);
  void end_search();
  bool must_wait() const;
  void adopt();
  void on_adopted(const Result<PilotPort::Agreed>& agreed);
  void settle();
  void judge_drift();
  void learn_surprise(double surprise);
  std::vector<std::vector<Group>> not_again() const;
  void watch(StepSample sample);
  void count_calm();
  void watch_window();
  void accept(const std::vector<StepSample>& steps);
  static Cause cause_of(const std::vector<StepSample>& steps, const Usual& before);
  static Usual usual_times(const std::vector<StepSample>& steps);
  double quick_answer() const;  // of the samples; 0: too few came
  void forget_answers();
  bool link_became_faster();
  static int in_a_row(int before, double period_ns, double usual_ns);
  void note(PlanNote note);
  template <typename T>
  std::function<void(const Result<T>&)> while_it_matters(void (Pilot::*on)(const Result<T>&));

  static constexpr uint32_t kCalmSteps = 100;
  static constexpr double kDriftMin = 0.1, kDriftTimes = 1.5;
  static constexpr uint32_t kPlainRestMin = 8;  // steps, until what is plain begins a search

  PilotPort& port_;
  const SearchPace pace_;
  Stage stage_ = Stage::kOff;
  uint64_t step_ = 0;  // the last complete one
  Asking asking_;
  bool asked_ = false;  // and no answer yet
  PilotPort::PlanPtr running_;
  Cause next_ = Cause::kNone;               // of the search behind the steps that are measured
  std::vector<StepSample> samples_;         // of usual steps under it
  uint32_t warming_ = 0;                    // steps until they count
  std::vector<SeenPlan> seen_;              // as PilotPort::Known's
  std::vector<std::vector<Group>> lost_;    // trials
  std::vector<std::vector<Group>> passed_;  // over in this search, whatever they are worth
  double lost_beside_ns_ = 0;  // what a step took when the search in which they lost ended
  bool lost_now_ = false;      // some of them in this search
  SurveyPtr survey_;
  const Candidate* candidate_ = nullptr;  // of it, that is proposed or tried
  uint32_t trials_ = 0;                   // of this search
  uint32_t spent_ = 0;                    // steps of its trials
  Cause cause_ = Cause::kNone;            // likewise
  Cause origin_ = Cause::kNone;           // of the search that it goes on with, else the same
  bool found_ = false;                    // likewise: it has kept a plan
  bool drifted_ = false;                  // it began because windows were off
  bool left_over_ = false;                // it had no steps left for a plan that promises much
  bool owed_ = false;                     // trials cost too much: what is left waits
  TrialAccount account_;
  double between_ns_ = 0;          // as Usual's, when plans were surveyed last
  std::string left_out_;           // as Survey's, and said of the last one
  bool said_unsearched_ = false;   // of the plans that it has looked for
  std::vector<double> surprises_;  // of the last trials: what was measured / promised
  double doubt_ = 1;     // in this search: a promise is believed as if it were so much longer
  bool unsure_ = false;  // what was predicted of its last trial was far off
  std::optional<Tried> tried_;
  bool faster_ = false;  // the one that is being adopted
  uint64_t adopted_epoch_ = 0;
  Usual accepted_;        // while settled: of the search, then of the first steps after it
  bool at_rest_ = false;  // the latter
  // Of quick answers in windows under this plan the quickest, but for those that were plainly
  // quicker (0: none), and how many windows had any.
  double accepted_answer_ = 0;
  int windows_answered_ = 0;
  std::vector<StepSample> window_;
  double drift_ = kDriftMin;  // of steps, that begins a search
  bool told_of_faster_link_ = false;
  int windows_faster_ = 0;           // in a row, whose quick answer was plainly quicker
  int windows_off_ = 0;              // in a row; below 0: steps became shorter
  int steps_off_ = 0;                // likewise, steps that are plainly off
  uint32_t settled_for_ = 0;         // steps
  uint32_t resting_ = 0, rest_ = 0;  // so many before it looks again: this time, the next
  uint32_t resting_plain_ = 0;       // likewise, where the change is plain
  uint32_t unrest_ = 0;              // how often searches followed each other closely
  uint32_t calm_for_ = 0;            // steps in a row that were not plainly off, but for pauses
  uint32_t usual_for_ = 0;           // likewise, since the last pause
  uint32_t calm_most_ = 0;           // the most of them since the last search began
  bool chosen_in_unrest_ = false;    // the plan that runs
  std::vector<PlanNote> notes_;
};

}  // namespace cgx::scheduler
