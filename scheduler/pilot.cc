#include "scheduler/pilot.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr double kNearTheBest = 1.25;  // as far as a prediction may be wrong
constexpr size_t kWindow = 20;
constexpr double kDrift = 0.15;
constexpr uint32_t kWindowsOff = 3;
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

// --- Steps ---

void Pilot::completed(const PilotPort::PlanPtr& base, StepSample sample, bool usual) {
  if (base != running_) {
    base->plan.epoch == adopted_epoch_&& stage_ == Stage::kAdopting ? go_on_with(base)
                                                                    : begin(base);
  }
  if (stage_ == Stage::kTrying) return try_step(sample, usual);
  const bool counts = usual && sample.period_ns > 0 && sample.epoch == running_->plan.epoch;
  if (!counts) return;
  if (warming_ > 0) {
    --warming_;
    return;
  }
  if (stage_ == Stage::kSettled) return watch(sample);
  if (stage_ == Stage::kMeasuring && samples_.size() < 2 * pace_.samples) {
    samples_.push_back(std::move(sample));
  }
}

void Pilot::begin(const PilotPort::PlanPtr& base) {
  ++life_;
  asked_ = false;
  running_ = base;
  samples_.clear();
  tried_.reset();
  survey_.reset();
  warming_ = pace_.warm_up;
  rest_ = kRestMin;
  const bool searches = base->policy.mode == PlanMode::kAuto && base->plan.machines > 1;
  stage_ = searches ? Stage::kMeasuring : Stage::kOff;
}

void Pilot::go_on_with(const PilotPort::PlanPtr& base) {
  running_ = base;
  tried_.reset();
  if (faster_) rest_ = kRestMin;
  stage_ = Stage::kProposing;
}

void Pilot::work(const PilotPort::PlanPtr& base) {
  if (stage_ == Stage::kOff || asked_ || base != running_ || !port_.may_propose()) return;
  if (stage_ == Stage::kMeasuring && samples_.size() >= pace_.samples)
    ask_for_survey();
  else if (stage_ == Stage::kProposing)
    propose_next();
  else if (stage_ == Stage::kAdopting && adopted_epoch_ == 0)
    adopt();
}

// --- Candidates ---

void Pilot::ask_for_survey() {
  stage_ = Stage::kSurveying;
  port_.survey(usual_of(samples_), while_it_matters(&Pilot::on_survey));
}

void Pilot::on_survey(const Result<SurveyPtr>& survey) {
  if (!survey.ok()) {
    note({.name = "survey", .verdict = survey.status().to_string()});
    return settle();
  }
  survey_ = *survey;
  predicted_ns_ = survey_->running_ns;
  next_ = 0;
  stage_ = Stage::kProposing;
}

bool Pilot::worth_trying() const {
  if (!survey_ || next_ >= survey_->candidates.size()) return false;
  return survey_->candidates[next_].step_ns <= kNearTheBest * predicted_ns_;
}

void Pilot::propose_next() {
  if (!worth_trying()) return settle();
  port_.propose(survey_->candidates[next_].groups,
                {.against = running_->hash, .block = pace_.block, .pairs = pace_.pairs},
                while_it_matters(&Pilot::on_trial_agreed));
}

void Pilot::on_trial_agreed(const Result<PilotPort::Agreed>& agreed) {
  const Candidate& candidate = survey_->candidates[next_];
  if (!agreed.ok()) {
    ++next_;
    return note({.name = candidate.name, .verdict = agreed.status().to_string()});
  }
  stage_ = Stage::kTrying;
  tried_ = {*agreed, TrialScore(agreed->plan->plan.trial, agreed->first_step)};
}

void Pilot::try_step(const StepSample& sample, bool usual) {
  const PreparedPlan& plan = *tried_->agreed.plan;
  const uint64_t first = tried_->agreed.first_step;
  if (sample.step < first) return;
  const bool tries = plan.plan.trial.tries(sample.step - first);
  const uint64_t expected = tries ? plan.plan.epoch : running_->plan.epoch;
  TrialScore& score = tried_->score;
  score.add(sample.step, usual && sample.epoch == expected ? sample.period_ns : 0);
  TrialScore::Verdict verdict = score.verdict();
  if (verdict == TrialScore::Verdict::kOpen) {
    if (!score.over(sample.step)) return;
    verdict = TrialScore::Verdict::kNotFaster;  // too few steps counted
  }
  faster_ = verdict == TrialScore::Verdict::kFaster;
  const Candidate& candidate = survey_->candidates[next_++];
  note({.epoch = plan.plan.epoch,
        .step = first,
        .name = candidate.name,
        .verdict = faster_ ? "kept" : "no faster",
        .predicted = candidate.step_ns / survey_->running_ns,
        .measured = score.ratio(),
        .step_ns = score.tried_ns()});
  if (faster_) predicted_ns_ = candidate.step_ns;
  // The next trial takes the place of this one.
  const bool ends_by_itself = score.over(sample.step) || worth_trying();
  stage_ = !faster_ && ends_by_itself ? Stage::kProposing : Stage::kAdopting;
  adopted_epoch_ = 0;
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
  note({.name = "adopting", .verdict = agreed.status().to_string()});
  begin(running_);
}

// --- Settled ---

void Pilot::settle() {
  stage_ = Stage::kSettled;
  accepted_ns_ = 0;
  windows_off_ = 0;
  window_.clear();
  warming_ = pace_.warm_up;
  resting_ = rest_;
  rest_ = std::min(2 * rest_, kRestMax);
}

void Pilot::watch(const StepSample& sample) {
  if (resting_ > 0) --resting_;
  window_.push_back(sample.period_ns);
  if (window_.size() < kWindow) return;
  const double period_ns = median_of(std::exchange(window_, {}));
  if (accepted_ns_ == 0) {
    accepted_ns_ = period_ns;
    return;
  }
  const bool off = std::abs(period_ns / accepted_ns_ - 1) > kDrift;
  windows_off_ = off ? windows_off_ + 1 : 0;
  if (windows_off_ < kWindowsOff || resting_ > 0) return;
  const uint32_t rest = rest_;
  begin(running_);
  rest_ = rest;
}

}  // namespace cgx::scheduler
