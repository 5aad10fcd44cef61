#include "scheduler/planners/pilot.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr size_t kSeenMax = 8;
constexpr size_t kWindow = 8;
constexpr double kDrift = 0.15;
constexpr double kPlainly = 0.4;               // by half as much again, or less than two thirds
constexpr int kWindowsOff = 2, kStepsOff = 5;  // in a row
constexpr uint32_t kRestMin = 50, kRestMax = 3200;
constexpr size_t kNotesMax = 32;

// Of the steps, the one that took as long as they usually did.
StepSample usual_of(std::vector<StepSample> samples) {
  const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end(),
                   [](const auto& one, const auto& other) { return one.step_ns < other.step_ns; });
  return std::move(*middle);
}

}  // namespace

const char* Pilot::doing() const {
  switch (stage_) {
    case Stage::kOff:
      return "";
    case Stage::kMeasuring:
      return "measuring";
    case Stage::kSurveying:
      return "surveying";
    case Stage::kProposing:
      return "proposing";
    case Stage::kTrying:
      return "trying";
    case Stage::kAdopting:
      return "adopting";
    case Stage::kSettled:
      return "settled";
  }
  return "";
}

// An answer that comes after everything has begun anew is not looked at.
template <typename T>
std::function<void(const Result<T>&)> Pilot::while_it_matters(void (Pilot::*on)(const Result<T>&)) {
  asked_ = true;
  return [this, on, life = life_](const Result<T>& answer) {
    if (life != life_) return;
    asked_ = false;
    (this->*on)(answer);
  };
}

void Pilot::note(PlanNote note) {
  if (notes_.size() == kNotesMax) notes_.erase(notes_.begin());
  port_.report(notes_.emplace_back(std::move(note)));
}

void Pilot::completed(const PilotPort::PlanPtr& base, StepSample sample, bool usual) {
  if (base != running_) {
    const bool adopted = stage_ == Stage::kAdopting && base->plan.epoch == adopted_epoch_;
    adopted ? go_on_with(base) : begin(base);
  }
  step_ = sample.step;
  if (stage_ == Stage::kTrying) return try_step(std::move(sample), usual);
  const bool counts = usual && sample.period_ns > 0 && sample.epoch == running_->plan.epoch;
  if (!counts) return;
  if (warming_ > 0) {
    --warming_;
    return;
  }
  if (stage_ == Stage::kSettled) return watch(std::move(sample));
  if (stage_ == Stage::kMeasuring && samples_.size() < 2 * pace_.samples) {
    samples_.push_back(std::move(sample));
  }
}

void Pilot::begin(const PilotPort::PlanPtr& base) {
  ++life_;
  asked_ = false;
  running_ = base;
  samples_.clear();
  seen_.clear();
  tried_.reset();
  survey_.reset();
  warming_ = pace_.warm_up;
  rest_ = kRestMin;
  const bool searches = base->policy.mode != PlanMode::kFixed && base->plan.machines > 1;
  stage_ = searches ? Stage::kMeasuring : Stage::kOff;
}

void Pilot::go_on_with(const PilotPort::PlanPtr& base) {
  running_ = base;
  tried_.reset();
  if (!faster_) return settle();
  rest_ = kRestMin;
  stage_ = Stage::kSurveying;
}

void Pilot::work(const PilotPort::PlanPtr& base) {
  if (asked_ || base != running_ || !port_.may_propose()) return;
  if (stage_ == Stage::kMeasuring && samples_.size() >= pace_.samples) begin_search();
  if (stage_ == Stage::kSurveying) {
    port_.survey({usual_of(samples_), seen_, lost_}, while_it_matters(&Pilot::on_survey));
  } else if (stage_ == Stage::kProposing) {
    propose();
  } else if (stage_ == Stage::kAdopting && adopted_epoch_ == 0) {
    adopt();
  }
}

void Pilot::begin_search() {
  trials_ = 0;
  lost_.clear();
  for (SeenPlan& seen : seen_) seen.step_ns = 0;  // things are different now
  stage_ = Stage::kSurveying;
}

void Pilot::on_survey(const Result<SurveyPtr>& survey) {
  if (!survey.ok()) {
    note(PlanNote{.name = "survey", .verdict = survey.status().to_string()});
    return end_search();
  }
  survey_ = *survey;
  candidate_ = worth_trying();
  if (candidate_ == nullptr) return end_search();
  stage_ = Stage::kProposing;
}

// A first prediction may be wrong; later ones have seen what codecs take here. In the end the plan
// that loses nothing has its chance, too.
const Candidate* Pilot::worth_trying() const {
  if (trials_ >= survey_->trials_max) return nullptr;
  for (const Candidate& candidate : survey_->candidates) {
    const bool promises = trials_ == 0 || candidate.step_ns < survey_->running_ns;
    if (promises || candidate.bypass) return &candidate;
  }
  return nullptr;
}

void Pilot::propose() {
  ++trials_;
  port_.propose(candidate_->groups,
                {.against = running_->hash, .block = pace_.block, .pairs = pace_.pairs},
                while_it_matters(&Pilot::on_trial_agreed));
}

void Pilot::on_trial_agreed(const Result<PilotPort::Agreed>& agreed) {
  if (!agreed.ok()) {
    lost_.push_back(candidate_->groups);
    stage_ = Stage::kSurveying;
    return note(PlanNote{.name = candidate_->name, .verdict = agreed.status().to_string()});
  }
  stage_ = Stage::kTrying;
  tried_ = {*agreed, TrialScore(agreed->plan->plan.trial, agreed->first_step), {}};
}

void Pilot::try_step(StepSample sample, bool usual) {
  const Trial& trial = tried_->agreed.plan->plan.trial;
  const uint64_t step = sample.step, first = tried_->agreed.first_step;
  if (step < first) return;
  const bool tries = trial.tries(step - first);
  const PreparedPlan& plan = tries ? *tried_->agreed.plan : *running_;
  const bool counts = usual && sample.epoch == plan.plan.epoch && sample.period_ns > 0;
  TrialScore& score = tried_->score;
  score.add(step, counts ? sample.period_ns : 0);
  const bool begins = trial.block > 1 && (step - first) % trial.block == 0;
  if (counts && tries && !begins) tried_->samples.push_back(std::move(sample));
  const TrialScore::Verdict verdict = score.verdict();
  if (verdict == TrialScore::Verdict::kOpen && !score.over(step)) return;
  end_trial(verdict == TrialScore::Verdict::kFaster);
}

void Pilot::end_trial(bool faster) {
  const double before_ns = usual_of(samples_).period_ns, beside_ns = tried_->score.other_ns();
  const bool changed = beside_ns > 0 && std::abs(std::log(beside_ns / before_ns)) > kPlainly;
  note(PlanNote{.epoch = tried_->agreed.plan->plan.epoch,
                .step = tried_->agreed.first_step,
                .name = candidate_->name,
                .verdict = changed  ? "void: steps changed meanwhile"
                           : faster ? "kept"
                                    : "no faster",
                .predicted = candidate_->step_ns / survey_->running_ns,
                .measured = tried_->score.ratio(),
                .step_ns = tried_->score.tried_ns()});
  if (changed) return begin(running_);  // what was measured before is of other conditions
  faster_ = faster;
  adopted_epoch_ = 0;
  remember();
  // A trial that was lost ends by itself, or when the next one begins.
  stage_ = faster ? Stage::kAdopting : Stage::kSurveying;
}

// What the plan on trial has shown, or, where it is the faster one, what the plan before it has.
void Pilot::remember() {
  const PreparedPlan& tried = *tried_->agreed.plan;
  const StepSample before = usual_of(samples_);
  const bool measured = !tried_->samples.empty();
  const StepSample now = measured ? usual_of(tried_->samples) : before;
  if (faster_) {
    see({running_->facts, before.arithmetic_ns, before.step_ns});
    lost_.push_back(running_->plan.groups);
    samples_ = {now};
    return;
  }
  if (measured) see({tried.facts, now.arithmetic_ns, now.step_ns});
  lost_.push_back(tried.plan.groups);
}

void Pilot::see(SeenPlan plan) {
  if (seen_.size() == kSeenMax) seen_.erase(seen_.begin());
  seen_.push_back(std::move(plan));
}

// Nothing else is worth a trial. One that was lost may still alternate: its base, proposed anew,
// ends it.
void Pilot::end_search() {
  if (!tried_ || tried_->score.over(step_)) return settle();
  faster_ = false;
  adopted_epoch_ = 0;
  stage_ = Stage::kAdopting;
}

// The plan on trial, or, to end the trial, the one that it was against.
void Pilot::adopt() {
  const Plan& plan = faster_ ? tried_->agreed.plan->plan : running_->plan;
  port_.propose(plan.groups, {}, while_it_matters(&Pilot::on_adopted));
}

void Pilot::on_adopted(const Result<PilotPort::Agreed>& agreed) {
  if (agreed.ok()) {
    adopted_epoch_ = agreed->plan->plan.epoch;
    return;
  }
  note(PlanNote{.name = "adopting", .verdict = agreed.status().to_string()});
  begin(running_);
}

void Pilot::settle() {
  tried_.reset();
  stage_ = Stage::kSettled;
  accepted_ns_ = usual_of(samples_).period_ns;  // that the search went by
  windows_off_ = steps_off_ = 0;
  window_.clear();
  warming_ = pace_.warm_up;
  settled_for_ = 0;
  resting_ = rest_;
  rest_ = std::min(2 * rest_, kRestMax);
}

// A search begins where two windows in a row are off, or some steps plainly: what changes plainly
// does not wait as long as what may be noise.
void Pilot::watch(StepSample sample) {
  ++settled_for_;
  const bool plainly = changed_plainly(sample);
  window_.push_back(std::move(sample));
  if (plainly && settled_for_ >= kRestMin && window_.size() >= kStepsOff) {
    samples_.assign(window_.end() - kStepsOff, window_.end());
    window_.clear();
    return begin_search();
  }
  if (window_.size() < kWindow) return;
  std::vector<double> periods;
  for (const StepSample& one : window_) periods.push_back(one.period_ns);
  samples_ = std::exchange(window_, {});
  const double change = median_of(std::move(periods)) / accepted_ns_ - 1;
  const int way = change > kDrift ? 1 : change < -kDrift ? -1 : 0;
  windows_off_ = way * windows_off_ > 0 ? windows_off_ + way : way;
  if (std::abs(windows_off_) < kWindowsOff || settled_for_ < resting_) return;
  begin_search();
}

bool Pilot::changed_plainly(const StepSample& sample) {
  const double change = std::log(sample.period_ns / accepted_ns_);
  const int way = change > kPlainly ? 1 : change < -kPlainly ? -1 : 0;
  steps_off_ = way * steps_off_ > 0 ? steps_off_ + way : way;
  return std::abs(steps_off_) >= kStepsOff;
}

}  // namespace cgx::scheduler
