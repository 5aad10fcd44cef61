#include "scheduler/plan/losses.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr uint32_t kEveryByDefault = 50, kEveryMost = 500;
constexpr uint64_t kEarlySteps = 32, kEarlyEvery = 8;

}  // namespace

void LossMeter::begin(std::vector<CodecSpec> strengths, uint64_t table_hash,
                      const std::vector<bool>& measured, uint32_t every_steps,
                      uint64_t first_step) {
  measure_each(every_steps);
  since_ = first_step - first_step % kEarlyEvery;
  const bool same = strengths_ != nullptr && *strengths_ == strengths &&
                    table_hash_ == table_hash && measured_ == measured;
  if (same) return;
  table_hash_ = table_hash;
  measured_ = measured;
  const bool none = strengths.empty();
  strengths_ =
      none ? nullptr : std::make_shared<const std::vector<CodecSpec>>(std::move(strengths));
  open_.assign(none ? 0 : measured.size(), {});
  forget();
}

void LossMeter::forget() {
  sums_.assign(open_.size(), {});
  last_ = {};
  steps_ = 0;
}

void LossMeter::measure_each(uint32_t every_steps) {
  every_ = every_steps == 0 ? kEveryByDefault : std::min(every_steps, kEveryMost);
}

bool LossMeter::due(uint64_t step) const {
  if (strengths_ == nullptr || step <= since_) return false;
  return step % every_ == 0 || (step - since_ < kEarlySteps && step % kEarlyEvery == 0);
}

void LossMeter::drop_step() {
  open_.assign(open_.size(), {});
}

bool LossMeter::close_step(uint64_t step) {
  if (!due(step)) return false;
  last_ = {};
  for (size_t t = 0; t < sums_.size(); ++t) {
    sums_[t] = sums_[t].times(kFades);
    sums_[t] += open_[t];
    last_ += open_[t];
    open_[t] = {};
  }
  ++steps_;
  return true;
}

}  // namespace cgx::scheduler
