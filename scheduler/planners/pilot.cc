#include "scheduler/planners/pilot.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr size_t kWindow = 6;
constexpr double kDrift = 0.1;
constexpr double kPlainChange = 0.4;           // by half as much again, or less than two thirds
constexpr int kWindowsOff = 2, kStepsOff = 5;  // in a row
constexpr double kWorthPromising = 0.98;       // less is not kept (scheduler/planners/verdict.cc)
constexpr uint32_t kRestMin = 50, kRestMax = 3200;
constexpr uint32_t kPlainRestMin = 8;  // doubles up to the other one
constexpr size_t kNotesMax = 32;

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
  plain_rest_ = kPlainRestMin;
  const bool searches = base->policy.mode != PlanMode::kFixed && base->plan.machines > 1;
  stage_ = searches ? Stage::kMeasuring : Stage::kOff;
}

void Pilot::go_on_with(const PilotPort::PlanPtr& base) {
  running_ = base;
  tried_.reset();
  if (!faster_) return settle();
  rest_ = kRestMin;
  plain_rest_ = kPlainRestMin;
  stage_ = Stage::kSurveying;
}

void Pilot::work(const PilotPort::PlanPtr& base) {
  if (asked_ || base != running_ || !port_.may_propose()) return;
  if (stage_ == Stage::kMeasuring && samples_.size() >= pace_.samples) begin_search(false);
  if (stage_ == Stage::kSurveying) {
    port_.survey({usual_of(samples_), seen_, lost_, unsure_, shorter_},
                 while_it_matters(&Pilot::on_survey));
  } else if (stage_ == Stage::kProposing) {
    propose();
  } else if (stage_ == Stage::kAdopting && adopted_epoch_ == 0) {
    adopt();
  }
}

void Pilot::begin_search(bool shorter) {
  trials_ = 0;
  unsure_ = false;
  shorter_ = shorter;
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
  if (unsure_) return most_different();
  for (const Candidate& candidate : survey_->candidates) {
    const bool promises = trials_ == 0 || candidate.step_ns < kWorthPromising * survey_->running_ns;
    if (promises || candidate.bypass) return &candidate;
  }
  return nullptr;
}

// Where predictions fail, what sends far more or far fewer bytes tells most about the link.
const Candidate* Pilot::most_different() const {
  const auto differs = [&](const Candidate& candidate) {
    const auto running = static_cast<double>(std::max<uint64_t>(survey_->running_bytes, 1));
    const auto sent = static_cast<double>(std::max<uint64_t>(candidate.sent_bytes, 1));
    return std::abs(std::log(sent / running));
  };
  const auto most = std::max_element(
      survey_->candidates.begin(), survey_->candidates.end(),
      [&](const auto& one, const auto& other) { return differs(one) < differs(other); });
  return most == survey_->candidates.end() ? nullptr : &*most;
}

void Pilot::propose() {
  ++trials_;
  port_.propose(candidate_->groups,
                {.against = running_->hash, .block = pace_.block, .pairs = pace_.pairs},
                while_it_matters(&Pilot::on_trial_agreed));
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
  resting_plain_ = plain_rest_;
  plain_rest_ = std::min(2 * plain_rest_, kRestMin);
}

// A search begins where two windows in a row are off, or some steps plainly: what changes plainly
// does not wait as long as what may be noise.
void Pilot::watch(StepSample sample) {
  ++settled_for_;
  steps_off_ = in_a_row(steps_off_, sample.period_ns, accepted_ns_);
  const bool plainly = std::abs(steps_off_) >= kStepsOff;
  window_.push_back(std::move(sample));
  if (plainly && settled_for_ >= resting_plain_ && window_.size() >= kStepsOff) {
    samples_.assign(window_.end() - kStepsOff, window_.end());
    window_.clear();
    return begin_search(steps_off_ < 0);
  }
  if (window_.size() < kWindow) return;
  std::vector<double> periods;
  for (const StepSample& one : window_) periods.push_back(one.period_ns);
  samples_ = std::exchange(window_, {});
  const double change = median_of(std::move(periods)) / accepted_ns_ - 1;
  const int way = change > kDrift ? 1 : change < -kDrift ? -1 : 0;
  windows_off_ = way * windows_off_ > 0 ? windows_off_ + way : way;
  if (std::abs(windows_off_) < kWindowsOff || settled_for_ < resting_) return;
  begin_search(windows_off_ < 0);
}

// How many steps were plainly off, all the same way: below 0 they became shorter.
int Pilot::in_a_row(int before, double period_ns, double usual_ns) {
  const double change = std::log(period_ns / usual_ns);
  const int way = change > kPlainChange ? 1 : change < -kPlainChange ? -1 : 0;
  return way * before > 0 ? before + way : way;
}

}  // namespace cgx::scheduler
