#include "scheduler/planners/pilot.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr double kWorthPromising = 0.98;  // less is not kept (scheduler/planners/verdict.cc)
constexpr double kPromisesMuch = 0.9;
constexpr double kNear = 1.1;  // a plan that is tried for what else it tells
constexpr uint32_t kRestMin = 50, kRestMax = 3200;
// Searches closer to each other than so many calm steps make the pilot restless; it rests twice as
// long for each, and so many calm steps (kCalmSteps) make up for one.
constexpr uint32_t kUnrestMost = 4, kRestless = 2;
constexpr uint32_t kPairsMin = 2;       // fewer than that tell only what is plain
constexpr uint32_t kStepsToSwitch = 3;  // until a plan that is proposed takes force
constexpr uint32_t kAdoptMost = 3;      // so often it is asked to keep a plan
constexpr uint32_t kStepsToAskAgain = 8;
constexpr size_t kNotesMax = 32;
// A plan that lost is remembered until steps take so many times as long as then, or less.
constexpr double kOtherTimes = 1.15;
// A search that finds nothing because steps drifted wants a drift that is so much larger next time.
constexpr double kDriftMax = 0.35;
constexpr size_t kSurprisesMax = 5;
constexpr double kDoubtMost = 1.3;

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

const char* Pilot::text_of(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "";
    case Cause::kLonger:
      return "steps take longer";
    case Cause::kShorter:
      return "steps take less long";
    case Cause::kLoad:
      return "cores are shared with others, or no longer";
    case Cause::kFasterLink:
      return "answers come faster: the link may be";
    case Cause::kCalm:
      return "steps are calm again";
    case Cause::kOtherPlan:
      return "ceilings or a policy brought another plan";
    case Cause::kLeftOver:
      return "a plan that promises much has not been tried";
    case Cause::kPaidFor:
      return "time has paid for the trials that had to wait";
  }
  return "";
}

// An answer that comes after everything has begun anew is not looked at.
template <typename T>
std::function<void(const Result<T>&)> Pilot::while_it_matters(void (Pilot::*on)(const Result<T>&)) {
  asked_ = true;
  return [this, on, wanted = asking_.wanted()](const Result<T>& answer) {
    if (wanted.expired()) return;
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
    if (adopted) {
      go_on_with(base);
    } else {
      may_follow(*base) ? follow(base) : begin(base);
    }
  }
  step_ = sample.step;
  charge(sample, usual);
  if (alternates_in_vain()) return put_off();
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
  asking_.drop();
  asked_ = false;
  running_ = base;
  samples_.clear();
  seen_.clear();
  tried_.reset();
  survey_.reset();
  warming_ = pace_.warm_up;
  rest_ = kRestMin;
  unrest_ = calm_most_ = 0;
  chosen_in_unrest_ = false;
  cause_ = origin_ = next_ = Cause::kNone;
  drift_ = kDriftMin;
  surprises_.clear();
  left_out_.clear();
  said_unsearched_ = false;
  lost_.clear();
  lost_beside_ns_ = 0;
  owed_ = false;
  account_.begin();
  forget_answers();
  const bool searches = base->policy.mode != PlanMode::kFixed && base->plan.machines > 1;
  stage_ = searches ? Stage::kMeasuring : Stage::kOff;
}

bool Pilot::may_follow(const PreparedPlan& base) const {
  return stage_ != Stage::kOff && base.plan.machines == running_->plan.machines &&
         base.table == running_->table && same_search(base.policy, running_->policy);
}

// What plans are worth is still known, but not what a step takes now, nor which of them new
// ceilings let through. A trial has ended, and a search that was under way begins again.
void Pilot::follow(const PilotPort::PlanPtr& base) {
  const bool settled = stage_ == Stage::kSettled, measures = stage_ == Stage::kMeasuring;
  const bool other_keys = !same_wish(base->policy, running_->policy);
  const bool same_groups = base->plan.groups == running_->plan.groups;
  running_ = base;
  warming_ = pace_.warm_up;
  if (same_groups && (measures || (settled && other_keys))) return;
  if (settled) {
    next_ = told_of_faster_link_ ? Cause::kFasterLink : Cause::kOtherPlan;
  } else if (!measures) {
    next_ = cause_;
    if (lost_now_) lost_beside_ns_ = usual_times(samples_).period_ns;
  }
  asking_.drop();
  asked_ = false;
  samples_.clear();
  tried_.reset();
  survey_.reset();
  forget_answers();
  stage_ = Stage::kMeasuring;
}

void Pilot::stop() {
  if (running_ == nullptr) return;
  asking_.drop();
  asked_ = false;
  stage_ = Stage::kOff;
  running_.reset();
  tried_.reset();
  survey_.reset();
  candidate_ = nullptr;
  samples_.clear();
  window_.clear();
  seen_.clear();
  lost_.clear();
  passed_.clear();
}

void Pilot::go_on_with(const PilotPort::PlanPtr& base) {
  if (faster_) remember(/*lost=*/false);
  found_ = found_ || faster_;
  running_ = base;
  chosen_in_unrest_ = restless() || (tried_ && tried_->score.shared());
  tried_.reset();
  if (!faster_) return settle();
  if (!chosen_in_unrest_) rest_ = kRestMin;
  forget_answers();
  stage_ = Stage::kSurveying;
}

void Pilot::work(const PilotPort::PlanPtr& base) {
  if (asked_ || base != running_ || !port_.may_propose()) return;
  if (stage_ == Stage::kMeasuring && samples_.size() >= pace_.samples) begin_search(next_);
  if (stage_ == Stage::kSurveying) {
    between_ns_ = usual_times(samples_).between_ns;
    port_.survey({usual_of(samples_), seen_, not_again(), taken_for_fast(), between_ns_},
                 asking_.wanted(), while_it_matters(&Pilot::on_survey));
  } else if (stage_ == Stage::kProposing && !must_wait()) {
    propose();
  } else if (stage_ == Stage::kAdopting && adopted_epoch_ == 0) {
    adopt();
  }
}

void Pilot::begin_search(Cause cause) {
  trials_ = 0;
  spent_ = 0;
  unsure_ = found_ = left_over_ = owed_ = lost_now_ = false;
  drifted_ = drifted_ && goes_on(cause);
  doubt_ = std::clamp(median_of(surprises_), 1.0, kDoubtMost);
  passed_.clear();
  forget_times(cause);
  cause_ = cause;
  if (!goes_on(cause)) origin_ = cause;
  account_.begin_search(usual_times(samples_).period_ns);
  if (cause != Cause::kNone) {
    if (cause != Cause::kOtherPlan && !goes_on(cause)) count_unrest();
    note(PlanNote{.step = step_, .name = "search", .verdict = text_of(cause)});
  }
  forget_lost(cause);
  stage_ = Stage::kSurveying;
}

// Things are different now. What arithmetic takes is still known, but for others' load that came or
// went: what codecs took amid it would count against them in calm times.
void Pilot::forget_times(Cause cause) {
  if (goes_on(cause)) return;
  const bool other_load = cause == Cause::kLoad || cause == Cause::kCalm || amid_load();
  for (SeenPlan& seen : seen_) {
    seen.step_ns = 0;
    if (other_load) seen.arithmetic_ns = 0;
  }
}

void Pilot::forget_lost(Cause cause) {
  const double now_ns = usual_times(samples_).period_ns;
  const bool same = lost_beside_ns_ > 0 && now_ns < kOtherTimes * lost_beside_ns_ &&
                    lost_beside_ns_ < kOtherTimes * now_ns;
  // A faster link favours others, and what was decided amid unrest is decided anew.
  const bool other_times =
      cause == Cause::kShorter || cause == Cause::kFasterLink || cause == Cause::kCalm;
  // What has lost to a faster plan may be faster than this one.
  const bool slower_plan = cause == Cause::kOtherPlan && kWorthPromising * now_ns > lost_beside_ns_;
  if (!same || other_times || slower_plan) lost_.clear();
}

std::vector<std::vector<Group>> Pilot::not_again() const {
  std::vector<std::vector<Group>> groups = lost_;
  groups.insert(groups.end(), passed_.begin(), passed_.end());
  return groups;
}

// Whoever else has the cores comes and goes as often as he likes.
bool Pilot::restless() const {
  return amid_load() || unrest_ >= kRestless;
}

void Pilot::count_unrest() {
  const uint32_t calm = std::exchange(calm_most_, 0) / kCalmSteps;
  unrest_ = calm > 0 ? unrest_ - std::min(unrest_, calm) : std::min(unrest_ + 1, kUnrestMost);
}

void Pilot::on_survey(const Result<SurveyPtr>& survey) {
  if (!survey.ok()) {
    note(PlanNote{.step = step_, .name = "survey", .verdict = survey.status().to_string()});
    return end_search();
  }
  survey_ = *survey;
  note_limits();
  candidate_ = worth_trying();
  left_over_ = candidate_ == nullptr && leaves_something();
  if (candidate_ == nullptr) return end_search();
  if (!account_.covers()) return put_off();
  stage_ = Stage::kProposing;
}

// The machines for as long as they are the same, the pieces once.
void Pilot::note_limits() {
  const auto say = [this](std::string what) {
    note(PlanNote{.step = step_, .name = "survey", .verdict = std::move(what), .limits = true});
  };
  const bool others = std::exchange(left_out_, survey_->left_out) != survey_->left_out;
  if (others && !left_out_.empty()) say("without " + left_out_);
  if (survey_->unsearched.empty() || std::exchange(said_unsearched_, true)) return;
  say(survey_->unsearched);
}

// A first prediction may be wrong; later ones have seen what codecs take here. In the end the plan
// that loses nothing has its chance, too.
const Candidate* Pilot::worth_trying() const {
  if (!may_try_more()) return nullptr;
  if (const Candidate* most = unsure_ ? most_different() : nullptr) return most;
  const bool first_search = cause_ == Cause::kNone;
  for (const Candidate& candidate : survey_->candidates) {
    const bool promises = (first_search && trials_ == 0) || believed(candidate) < kWorthPromising;
    const bool loses_nothing = candidate.bypass && (first_search || promised(candidate) < kNear);
    if (promises || loses_nothing) return &candidate;
  }
  return nullptr;
}

bool Pilot::may_try_more() const {
  return trials_ < survey_->trials_max && pairs_left() >= kPairsMin;
}

// It has kept no plan, and what its trials have taught would be worth one more. A later search has
// steps for it.
bool Pilot::leaves_something() const {
  const auto promises_much = [this](const Candidate& candidate) {
    return candidate.step_ns > 0 && believed(candidate) < kPromisesMuch;
  };
  return trials_ > 0 && !found_ && !restless() &&
         std::any_of(survey_->candidates.begin(), survey_->candidates.end(), promises_much);
}

// Of the time from step to step under the plan that runs, as trials measure it; 0: nobody knows.
double Pilot::promised(const Candidate& candidate) const {
  if (candidate.step_ns <= 0 || survey_->running_ns <= 0) return 0;
  return (candidate.step_ns + between_ns_) / (survey_->running_ns + between_ns_);
}

// What trials of earlier searches have kept of what was promised, this one will keep. Its own ones
// have taught the next prediction already. A large gain is tried in any case.
double Pilot::believed(const Candidate& candidate) const {
  return promised(candidate) * doubt_;
}

// A first prediction, one amid others' load or of a link that is taken for fast says nothing of
// later ones.
void Pilot::learn_surprise(double surprise) {
  const bool first = cause_ == Cause::kNone && trials_ <= 1;
  if (first || taken_for_fast() || tried_->score.shared()) return;
  surprises_.push_back(surprise);
  if (surprises_.size() > kSurprisesMax) surprises_.erase(surprises_.begin());
}

// A search ends in time: its later trials have fewer pairs, or none. What it takes to think and to
// prepare plans is not counted. Where all pairs have to agree, a trial that is in vain ends soon.
uint32_t Pilot::pairs_left() const {
  if (restless()) return pace_.pairs;
  const uint32_t gone = spent_ + kStepsToSwitch * (trials_ + 1);
  const uint32_t left = survey_->steps_max - std::min(gone, survey_->steps_max);
  return std::min(pace_.pairs, left / (2 * pace_.block));
}

// Where predictions fail, what sends far more or far fewer bytes tells most about the link, unless
// it is known to be slow. Null: there is none.
const Candidate* Pilot::most_different() const {
  const auto differs = [&](const Candidate& candidate) {
    const auto running = static_cast<double>(std::max<uint64_t>(survey_->running_bytes, 1));
    const auto sent = static_cast<double>(std::max<uint64_t>(candidate.sent_bytes, 1));
    return std::abs(std::log(sent / running));
  };
  const Candidate* most = nullptr;
  for (const Candidate& candidate : survey_->candidates) {
    if (promised(candidate) >= kNear) continue;
    if (most == nullptr || differs(candidate) > differs(*most)) most = &candidate;
  }
  return most;
}

void Pilot::propose() {
  const Trial trial{.against = running_->hash, .block = pace_.block, .pairs = pairs_left()};
  ++trials_;
  port_.propose(candidate_->groups, trial, while_it_matters(&Pilot::on_trial_agreed));
}

// Nothing else is worth a trial. One that was lost may still alternate: its base, proposed anew,
// ends it.
void Pilot::end_search() {
  if (!tried_ || tried_->score.over(step_)) return settle();
  faster_ = false;
  adopted_epoch_ = 0;
  stage_ = Stage::kAdopting;
}

// A trial has memory on every machine until it is over. What was refused may lack just that.
bool Pilot::must_wait() const {
  return tried_ && step_ < tried_->ask_again;
}

// The plan on trial, or, to end the trial, the one that it was against.
void Pilot::adopt() {
  if (!faster_ && tried_->score.over(step_)) return settle();  // it has ended by itself
  if (must_wait()) return;
  const Plan& plan = faster_ ? tried_->facts->plan : running_->plan;
  port_.propose(plan.groups, {}, while_it_matters(&Pilot::on_adopted));
}

// A plan that was faster is asked for again; if it is refused each time, the search goes on.
void Pilot::on_adopted(const Result<PilotPort::Agreed>& agreed) {
  if (agreed.ok()) {
    adopted_epoch_ = agreed->plan->plan.epoch;
    return;
  }
  note(PlanNote{.step = step_, .name = "adopting", .verdict = agreed.status().to_string()});
  tried_->ask_again = std::max(tried_->end(), step_ + kStepsToAskAgain);
  if (!faster_ || ++tried_->refused < kAdoptMost) return;
  faster_ = false;
  remember(/*lost=*/false);
  stage_ = Stage::kSurveying;
}

// Steps that drift without another plan being any better will drift again. What kept all plans from
// a trial is believed less the next time.
void Pilot::judge_drift() {
  if (found_) drift_ = kDriftMin;
  if (owed_ && trials_ > 0) return;  // it has not ended yet
  if (drifted_ && !found_) drift_ = std::min(kDriftTimes * drift_, kDriftMax);
  if (trials_ == 0 && !owed_ && !surprises_.empty()) surprises_.erase(surprises_.begin());
}

void Pilot::settle() {
  tried_.reset();
  stage_ = Stage::kSettled;
  judge_drift();
  accept(samples_);
  at_rest_ = false;
  windows_off_ = steps_off_ = windows_faster_ = 0;
  calm_for_ = usual_for_ = 0;
  window_.clear();
  told_of_faster_link_ = false;
  warming_ = pace_.warm_up;
  settled_for_ = 0;
  resting_ = rest_;
  const bool goes_on_later = owed_ && trials_ > 0;
  if (cause_ != Cause::kOtherPlan && !goes_on_later) rest_ = std::min(2 * rest_, kRestMax);
  resting_plain_ = kPlainRestMin << unrest_;
}

}  // namespace cgx::scheduler
