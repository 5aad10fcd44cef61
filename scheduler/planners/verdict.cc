#include "scheduler/planners/verdict.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr double kClearly = 0.9;  // of the other's step: two pairs of it are enough
constexpr double kClearlyNot = 1.05;
constexpr double kWorthIt = 0.98;
constexpr uint32_t kFewPairs = 2, kPairsToTell = 4;
// Every step of one block took so many times what each of the other took: one pair is enough, if
// its blocks have so many steps that count.
constexpr double kPlainly = 1.5;
constexpr size_t kStepsToTell = 3;

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
  Block closed;
  if (!periods_.empty()) {
    const auto [least, most] = std::minmax_element(periods_.begin(), periods_.end());
    closed = {median_of(periods_), *least, *most};
    if (periods_.size() < kStepsToTell) closed.least = closed.most = 0;
  }
  (trial_.tries(block_ * trial_.block) ? tried_ : other_) = closed;
  periods_.clear();
  if (block_ % 2 == 1) {
    close_pair();
    tried_ = other_ = {};
  }
  block_ = UINT64_MAX;
}

void TrialScore::close_pair() {
  if (tried_.median == 0 || other_.median == 0) return;
  tried_all_.push_back(tried_.median);
  ratios_.push_back(tried_.median / other_.median);
  if (tried_.least == 0 || other_.least == 0) return;
  all_faster_ += tried_.most < other_.least;
  none_faster_ += tried_.least > kWorthIt * other_.most;
  if (kPlainly * tried_.most < other_.least) plain_ = Verdict::kFaster;
  if (kPlainly * other_.most < tried_.least) plain_ = Verdict::kNotFaster;
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
  return ratio() <= kWorthIt ? Verdict::kFaster : Verdict::kNotFaster;
}

// One pair tells what is plain, two what is clear or the same in every step; what is close wants
// more, of which all but one in four agree.
TrialScore::Verdict TrialScore::verdict() const {
  if (shared_) return verdict_beside_others();
  if (pairs() < kFewPairs) return plain_;
  const auto [least, most] = std::minmax_element(ratios_.begin(), ratios_.end());
  if (*most <= kClearly) return Verdict::kFaster;
  if (*least >= kClearlyNot || none_faster_ == pairs()) return Verdict::kNotFaster;
  if (*most <= kWorthIt && all_faster_ == pairs()) return Verdict::kFaster;
  if (pairs() < std::min(kPairsToTell, trial_.pairs)) return Verdict::kOpen;
  const auto faster = std::count_if(ratios_.begin(), ratios_.end(), [](double r) { return r < 1; });
  const bool most_agree = 4 * static_cast<uint32_t>(faster) >= 3 * pairs();
  if (most_agree && ratio() <= kWorthIt) return Verdict::kFaster;
  return ratio() >= 1 || pairs() >= trial_.pairs ? Verdict::kNotFaster : Verdict::kOpen;
}

}  // namespace cgx::scheduler
