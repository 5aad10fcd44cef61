// The pilot's trials: which steps count, when they end, and what they have shown.
#include <cmath>
#include <iterator>
#include <utility>

#include "scheduler/planners/pilot.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kSeenMax = 8;
constexpr int kBesidesOff = 3;   // of a block's four steps the first does not count
constexpr double kFarOff = 1.3;  // a prediction: it is of no use for the next one

}  // namespace

void Pilot::on_trial_agreed(const Result<PilotPort::Agreed>& agreed) {
  if (!agreed.ok()) {
    on_trial_refused(agreed.status());
    return note(
        PlanNote{.step = step_, .name = candidate_->name, .verdict = agreed.status().to_string()});
  }
  stage_ = Stage::kTrying;
  tried_ = {.agreed = *agreed,
            .facts = agreed->plan->facts,
            .score = TrialScore(agreed->plan->plan.trial, agreed->first_step, restless()),
            .before = usual_times(samples_),
            .samples = {},
            .besides = {}};
}

// While an earlier trial alternates it has the memory that this one lacks.
void Pilot::on_trial_refused(const Status& why) {
  if (why.code() == StatusCode::kRESOURCE_EXHAUSTED && tried_ && step_ < tried_->end()) {
    tried_->ask_again = tried_->end();
    --trials_;
    return;
  }
  passed_.push_back(candidate_->groups);
  stage_ = Stage::kSurveying;
}

void Pilot::try_step(StepSample sample, bool usual) {
  const Trial& trial = tried_->agreed.plan->plan.trial;
  const uint64_t step = sample.step, first = tried_->agreed.first_step;
  if (step < first) return;
  ++spent_;
  const bool tries = trial.tries(step - first);
  const PreparedPlan& plan = tries ? *tried_->agreed.plan : *running_;
  const bool counts = usual && sample.epoch == plan.plan.epoch && sample.period_ns > 0;
  TrialScore& score = tried_->score;
  score.add(step, counts ? sample.period_ns : 0);
  const bool begins = trial.block > 1 && (step - first) % trial.block == 0;
  if (counts && !begins) count(std::move(sample), tries);
  if (changed_meanwhile()) {
    on_change();
    if (stage_ != Stage::kTrying) return;
  }
  const TrialScore::Verdict verdict = score.verdict();
  const bool open = verdict == TrialScore::Verdict::kOpen;
  const bool stopped = open && account_.far_overdrawn();
  if (open && !stopped && !refuted() && !score.over(step)) return;
  end_trial(verdict == TrialScore::Verdict::kFaster, stopped);
}

// Load that came goes again, and a plan found under it with it.
bool Pilot::worth_a_switch() const {
  constexpr double kUnderLoad = 0.9;
  return !restless() || tried_->score.ratio() <= kUnderLoad;
}

void Pilot::count(StepSample sample, bool tries) {
  if (!tries) {
    tried_->besides_off = in_a_row(tried_->besides_off, sample.period_ns, tried_->before.period_ns);
  }
  (tries ? tried_->samples : tried_->besides).push_back(std::move(sample));
}

// The plan that runs takes plainly more or less than before the trial. Where conditions come and
// go that is no news, and all pairs have to agree anyway.
bool Pilot::changed_meanwhile() const {
  return !restless() && std::abs(tried_->besides_off) >= kBesidesOff;
}

// Much was promised, and a pair of blocks shows nothing of it: what is left to gain is not worth
// more pairs.
bool Pilot::refuted() const {
  constexpr double kMuch = 0.7, kNothing = 0.95;
  if (tried_->score.pairs() == 0) return false;
  const double promise = promised(*candidate_);
  return promise > 0 && promise < kMuch && tried_->score.ratio() > kNothing;
}

// What was measured before is of other conditions. The trial goes on until another plan is
// proposed. Load slows both plans: the trial goes on, and all of its pairs have to agree.
void Pilot::on_change() {
  const std::vector<StepSample>& besides = tried_->besides;
  std::vector<StepSample> last(besides.end() - kBesidesOff, besides.end());
  const Cause cause = cause_of(last, tried_->before);
  if (cause == Cause::kLoad) {
    tried_->besides_off = 0;
    return tried_->score.share();
  }
  note_trial("void: steps changed meanwhile");
  tried_->agreed.plan.reset();
  samples_ = std::move(last);
  const bool found = found_;
  begin_search(cause);
  found_ = found;
}

void Pilot::note_trial(std::string verdict) {
  note(PlanNote{.epoch = tried_->agreed.plan->plan.epoch,
                .step = tried_->agreed.first_step,
                .name = candidate_->name,
                .verdict = std::move(verdict),
                .predicted = promised(*candidate_),
                .measured = tried_->score.ratio(),
                .step_ns = tried_->score.tried_ns()});
}

void Pilot::end_trial(bool faster, bool stopped) {
  const bool keeps = faster && worth_a_switch();
  note_trial(keeps     ? "kept"
             : faster  ? "not worth a switch under others' load"
             : stopped ? "stopped: it took too much time"
                       : "no faster");
  const double promise = promised(*candidate_);
  const bool told = promise > 0 && tried_->score.ratio() > 0;
  const double surprise = told ? tried_->score.ratio() / promise : 1;
  unsure_ = std::abs(std::log(surprise)) > std::log(kFarOff) && !keeps;
  if (told) learn_surprise(surprise);
  faster_ = keeps;
  adopted_epoch_ = 0;
  tried_->agreed.plan.reset();
  if (!keeps) remember(/*lost=*/!faster && (tried_->score.pairs() > 0 || stopped));
  if (!keeps && !account_.covers() && may_try_more()) return put_off();
  // A trial that was lost ends by itself, or when the next one begins.
  stage_ = keeps ? Stage::kAdopting : Stage::kSurveying;
}

// Steps in which something is measured take longer under either plan.
void Pilot::charge(const StepSample& sample, bool usual) {
  if (stage_ == Stage::kOff) return;
  account_.passed(sample.period_ns);
  if (!tried_ || !usual || sample.period_ns <= 0) return;
  if (sample.step >= tried_->agreed.first_step) {
    account_.try_plan(tried_->facts->plan.epoch, tried_->before.period_ns);
  }
  account_.add(sample.epoch != running_->plan.epoch, sample.period_ns);
}

// A plan has lost, and goes on costing time while others are surveyed or wait for memory.
bool Pilot::alternates_in_vain() const {
  const bool looks = stage_ == Stage::kSurveying || (stage_ == Stage::kProposing && !asked_);
  return looks && tried_ && !tried_->score.over(step_) && !account_.covers();
}

// What is left to try waits until time has paid for it. Where the last trial still alternates, the
// plan beside it ends it.
void Pilot::put_off() {
  asking_.drop();
  asked_ = false;
  owed_ = may_try_more() || (trials_ > 0 && !found_ && !restless());
  end_search();
}

TrialTime Pilot::trial_time() const {
  return {.spent_ns = static_cast<uint64_t>(account_.spent_ns()),
          .allowed_ns = static_cast<uint64_t>(account_.allowed_ns()),
          .elapsed_ns = static_cast<uint64_t>(account_.elapsed_ns()),
          .waits = owed_};
}

// Both plans ran side by side: what each of them took then is what the next survey goes by. A plan
// that was faster, or that had no steps to show it, has not lost.
void Pilot::remember(bool lost) {
  const FactsPtr& tried = tried_->facts;
  if (!tried_->besides.empty()) samples_ = std::move(tried_->besides);
  const StepSample beside = usual_of(samples_);
  const bool measured = !tried_->samples.empty();
  const StepSample now = measured ? usual_of(tried_->samples) : beside;
  auto& others = faster_ || lost ? lost_ : passed_;
  others.push_back(faster_ ? running_->plan.groups : tried->plan.groups);
  lost_now_ |= faster_ || lost;
  if (faster_) {
    see({running_->facts, beside.arithmetic_ns, beside.step_ns, beside.busy_ns});
    if (measured) samples_ = std::move(tried_->samples);
  } else if (measured) {
    see({tried, now.arithmetic_ns, now.step_ns, now.busy_ns});
  }
}

void Pilot::see(SeenPlan plan) {
  if (seen_.size() == kSeenMax) seen_.erase(seen_.begin());
  seen_.push_back(std::move(plan));
}

}  // namespace cgx::scheduler
