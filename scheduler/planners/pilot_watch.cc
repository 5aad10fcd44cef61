// The pilot while it is settled: what makes it look for another plan.
#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/planners/pilot.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kWindow = 6, kFewSteps = 3;
constexpr size_t kAtRest = 12;                 // steps, until it is known what one takes at rest
constexpr double kPlainChange = 0.4;           // by half as much again, or less than two thirds
constexpr int kWindowsOff = 2, kStepsOff = 5;  // in a row
constexpr int kWindowsOffByLoad = 6;           // likewise: other programs come and go
constexpr double kPlainlyFaster = 0.5;         // of what a byte took
constexpr int kWindowsToKnow = 3;              // what one takes
constexpr uint32_t kBesidesAPause = 10;        // steps between two of them, at least
constexpr uint32_t kForgiving = 400;           // calm steps: a smaller drift is looked into again

}  // namespace

// A search begins where two windows in a row are off, or some steps plainly: what changes plainly
// does not wait as long as what may be noise. What others' programs do to steps has to last.
void Pilot::watch(StepSample sample) {
  ++settled_for_;
  steps_off_ = in_a_row(steps_off_, sample.period_ns, accepted_.period_ns);
  const bool plainly = std::abs(steps_off_) >= kStepsOff;
  count_calm();
  window_.push_back(std::move(sample));
  if (plainly && settled_for_ >= resting_plain_ && window_.size() >= kStepsOff) {
    const std::vector<StepSample> last(window_.end() - kStepsOff, window_.end());
    const Cause cause = cause_of(last, accepted_);
    if (cause != Cause::kLoad) {
      samples_ = last;
      window_.clear();
      return begin_search(cause);
    }
  }
  if (chosen_in_unrest_ && calm_for_ >= kCalmSteps && window_.size() >= kFewSteps) {
    chosen_in_unrest_ = false;
    samples_ = std::exchange(window_, {});
    return begin_search(Cause::kCalm);
  }
  if (left_over_ && settled_for_ >= resting_ && window_.size() >= kFewSteps) {
    samples_ = std::exchange(window_, {});
    return begin_search(Cause::kLeftOver);
  }
  if (owed_ && account_.covers() && settled_for_ >= kPlainRestMin && window_.size() >= kFewSteps) {
    samples_ = std::exchange(window_, {});
    return begin_search(Cause::kPaidFor);
  }
  if (told_of_faster_link_ && settled_for_ >= kPlainRestMin && window_.size() >= kFewSteps) {
    samples_ = std::exchange(window_, {});
    return begin_search(Cause::kFasterLink);
  }
  if (window_.size() < (at_rest_ ? kWindow : kAtRest)) return;
  samples_ = std::exchange(window_, {});
  watch_window();
}

// A lone step that is off is a pause of the trainer's: a checkpoint, an evaluation, a slow batch.
// It does not count, and the steps on both sides of it are in a row.
void Pilot::count_calm() {
  if (steps_off_ != 0) {
    if (std::exchange(usual_for_, 0) < kBesidesAPause) calm_for_ = 0;
    return;
  }
  ++usual_for_;
  calm_most_ = std::max(calm_most_, ++calm_for_);
  if (calm_for_ % kForgiving == 0) drift_ = std::max(kDriftMin, drift_ / kDriftTimes);
}

// While plans alternated, a step took what they did to each other, too: what it takes now is what
// later ones are held against.
void Pilot::accept(const std::vector<StepSample>& steps) {
  const double before_ns = std::exchange(accepted_, usual_times(steps)).quickest_ns;
  if (amid_load() && before_ns > 0) {
    accepted_.quickest_ns = std::min(accepted_.quickest_ns, before_ns);
  }
  if (lost_now_) lost_beside_ns_ = accepted_.period_ns;
}

void Pilot::watch_window() {
  if (!std::exchange(at_rest_, true) && std::abs(steps_off_) < kStepsOff) accept(samples_);
  const double change = usual_times(samples_).period_ns / accepted_.period_ns - 1;
  const int way = change > drift_ ? 1 : change < -drift_ ? -1 : 0;
  windows_off_ = way * windows_off_ > 0 ? windows_off_ + way : way;
  const bool faster_link = link_became_faster();
  const bool lasts = std::abs(windows_off_) >= kWindowsOffByLoad;
  const uint32_t rest = lasts ? std::min(resting_, resting_plain_) : resting_;
  if (std::abs(windows_off_) >= kWindowsOff && settled_for_ >= rest) {
    const Cause cause = cause_of(samples_, accepted_);
    if (cause != Cause::kLoad || lasts) {
      begin_search(cause);
      drifted_ = true;
      return;
    }
  }
  if (!faster_link || settled_for_ < resting_plain_) return;
  accepted_answer_ = quick_answer();
  begin_search(Cause::kFasterLink);
}

// Not the period of the usual step: a trainer may have paused just before it.
Pilot::Usual Pilot::usual_times(const std::vector<StepSample>& steps) {
  std::vector<double> periods;
  for (const StepSample& one : steps) periods.push_back(one.period_ns);
  const double quickest = *std::min_element(periods.begin(), periods.end());
  const double period = median_of(std::move(periods));
  const StepSample usual = usual_of(steps);
  return {period, usual.arithmetic_ns, quickest, std::max(0.0, period - usual.step_ns)};
}

// Why steps are not as before. Where the daemon's arithmetic changed with them, or the quickest of
// them did not, cores are shared with others, or no longer: a link that changed spares no step.
Pilot::Cause Pilot::cause_of(const std::vector<StepSample>& steps, const Usual& before) {
  constexpr double kOfTheChange = 0.5;
  const Usual now = usual_times(steps);
  const double change = std::log(now.period_ns / before.period_ns);
  const bool timed = now.arithmetic_ns > 0 && before.arithmetic_ns > 0;
  const double work = timed ? std::log(now.arithmetic_ns / before.arithmetic_ns) : 0;
  if (work * change > 0 && work / change >= kOfTheChange) return Cause::kLoad;
  const double of_the_quickest = std::log(now.quickest_ns / before.quickest_ns);
  if (of_the_quickest / change < kOfTheChange) return Cause::kLoad;
  return change > 0 ? Cause::kLonger : Cause::kShorter;
}

// The second quickest: of one alone the link may have let all bytes pass at once.
double Pilot::quick_answer() const {
  double quickest = 0, second = 0;
  for (const StepSample& one : samples_) {
    const double answer = one.answer_ns_per_byte;
    if (answer <= 0) continue;
    if (quickest == 0 || answer < quickest) {
      second = std::exchange(quickest, answer);
    } else if (second == 0 || answer < second) {
      second = answer;
    }
  }
  return second;
}

void Pilot::forget_answers() {
  accepted_answer_ = 0;
  windows_answered_ = 0;
}

// A plan that arithmetic holds up takes as long over a link that became faster. Its frames say so:
// two windows in a row brought answers plainly quicker than all windows before under this plan. A
// link that became slower shows in steps, or does not matter.
bool Pilot::link_became_faster() {
  const double quick = quick_answer();
  if (quick == 0) return false;
  const bool known = windows_answered_ >= kWindowsToKnow;
  ++windows_answered_;
  if (known && quick < kPlainlyFaster * accepted_answer_) {
    return ++windows_faster_ >= kWindowsOff;
  }
  windows_faster_ = 0;
  accepted_answer_ = accepted_answer_ > 0 ? std::min(accepted_answer_, quick) : quick;
  return false;
}

// How many steps were plainly off, all the same way: below 0 they became shorter.
int Pilot::in_a_row(int before, double period_ns, double usual_ns) {
  const double change = std::log(period_ns / usual_ns);
  const int way = change > kPlainChange ? 1 : change < -kPlainChange ? -1 : 0;
  return way * before > 0 ? before + way : way;
}

}  // namespace cgx::scheduler
