#include "scheduler/planners/verdict.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cgx::scheduler {
namespace {

constexpr double kClearly = 0.9;  // of the other's step: two pairs of it are enough
constexpr double kClearlyNot = 1.05;
constexpr double kWorthIt = 0.98;
constexpr uint32_t kFewPairs = 2, kPairsToTell = 4, kPairsToOneThatDiffers = 5;
// Every step of one block took so many times what each of the other took: one pair is enough, if
// its blocks have so many steps that count.
constexpr double kPlainly = 1.5;
constexpr size_t kStepsToTell = 3;
// So many standard deviations more steps are won than chance gives: of equal plans whose steps are
// spread by 5 %, about one in twenty is kept at most.
constexpr double kDeviations = 1.74;
// A step that took so many times what is usual of the slower plan: the trainers paused in it.
constexpr double kPause = 3;

// Of two in the middle the shorter: one step of two may be a pause.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void TrialScore::add(uint64_t step, double period_ns) {
  if (step < first_step_ || step >= first_step_ + trial_.steps()) return;
  const uint64_t since = step - first_step_;
  if (since / trial_.block != block_) {
    close_block();
    block_ = since / trial_.block;
  }
  const bool first = since % trial_.block == 0 && trial_.block > 1;
  if (!first && period_ns > 0) periods_.push_back(period_ns);
  if (since % trial_.block == trial_.block - 1) close_block();
}

void TrialScore::close_block() {
  if (block_ == UINT64_MAX) return;
  (trial_.tries(block_ * trial_.block) ? tried_ : other_) = std::exchange(periods_, {});
  if (block_ % 2 == 1) {
    if (!tried_.empty() && !other_.empty()) close_pair();
    tried_.clear();
    other_.clear();
  }
  block_ = UINT64_MAX;
}

// The longest step of the slower plan is none, if half of its steps take as long.
void TrialScore::drop_pauses() {
  const double most = kPause * std::max(lower_median(tried_), lower_median(other_));
  const auto pause = [most](double period_ns) { return period_ns > most; };
  std::erase_if(tried_, pause);
  std::erase_if(other_, pause);
}

void TrialScore::close_pair() {
  drop_pauses();
  const double tried_ns = median_of(tried_);
  tried_all_.push_back(tried_ns);
  ratios_.push_back(tried_ns / median_of(other_));
  count_wins();
  if (std::min(tried_.size(), other_.size()) < kStepsToTell) return;
  const auto [tried_least, tried_most] = std::minmax_element(tried_.begin(), tried_.end());
  const auto [other_least, other_most] = std::minmax_element(other_.begin(), other_.end());
  all_faster_ += *tried_most < *other_least;
  none_faster_ += *tried_least > kWorthIt * *other_most;
  if (kPlainly * *tried_most < *other_least) plain_ = Verdict::kFaster;
  if (kPlainly * *other_most < *tried_least) plain_ = Verdict::kNotFaster;
}

// Each step of the tried block against each of the other (Wilcoxon, Mann and Whitney): of equal
// plans half are won, with a variance that depends on how many steps there are alone.
void TrialScore::count_wins() {
  for (const double tried : tried_) {
    for (const double other : other_) wins_ += tried < other ? 0.5 : tried > other ? -0.5 : 0;
  }
  const auto m = static_cast<double>(tried_.size()), n = static_cast<double>(other_.size());
  variance_ += m * n * (m + n + 1) / 12;
}

bool TrialScore::beyond_chance() const {
  return wins_ >= kDeviations * std::sqrt(variance_);
}

double TrialScore::tried_ns() const {
  return median_of(tried_all_);
}

double TrialScore::ratio() const {
  return median_of(ratios_);
}

// Chance favours either plan in half of the pairs: only all of them tell.
TrialScore::Verdict TrialScore::verdict_beside_others() const {
  const bool agreed =
      std::all_of(ratios_.begin(), ratios_.end(), [](double ratio) { return ratio < 1; });
  if (!agreed) return Verdict::kNotFaster;
  if (pairs() < trial_.pairs) return Verdict::kOpen;
  return ratio() <= kWorthIt && beyond_chance() ? Verdict::kFaster : Verdict::kNotFaster;
}

// One pair tells what is plain, two what is clear or the same in every step; what is close wants
// more, of which all but one in five agree. Nothing is faster that chance explains.
TrialScore::Verdict TrialScore::verdict() const {
  if (shared_) return verdict_beside_others();
  if (pairs() < kFewPairs) return plain_;
  const auto [least, most] = std::minmax_element(ratios_.begin(), ratios_.end());
  if (*most <= kClearly && beyond_chance()) return Verdict::kFaster;
  if (*least >= kClearlyNot || none_faster_ == pairs()) return Verdict::kNotFaster;
  if (*most <= kWorthIt && all_faster_ == pairs()) return Verdict::kFaster;
  if (pairs() < std::min(kPairsToTell, trial_.pairs)) return Verdict::kOpen;
  const auto faster = std::count_if(ratios_.begin(), ratios_.end(), [](double r) { return r < 1; });
  const bool most_agree =
      pairs() - static_cast<uint32_t>(faster) <= pairs() / kPairsToOneThatDiffers;
  if (most_agree && ratio() <= kWorthIt && beyond_chance()) return Verdict::kFaster;
  return ratio() >= 1 || pairs() >= trial_.pairs ? Verdict::kNotFaster : Verdict::kOpen;
}

}  // namespace cgx::scheduler
