#include "scheduler/communicator/attempts.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cgx::scheduler {

Status Attempts::check(uint32_t local, uint32_t attempt, const Status& failure) const {
  if (current(local, attempt)) return {};
  if (!failure.ok()) return failure;
  return {StatusCode::kSTEP_ORDER, "attempt " + std::to_string(attempt) +
                                       " of the step, the current one is " +
                                       std::to_string(ranks_[local].attempt)};
}

Status Attempts::hold(uint32_t local, const cgx_submit_record& record) {
  constexpr uint32_t kHeldMax = 4 * CGX_COMPLETION_CAPACITY;  // clients have a fourth to come
  if (held_of_[local] >= kHeldMax) {
    return protocol_error("more records than completions are free");
  }
  ++held_of_[local];
  held_.push_back({local, record});
  return {};
}

std::vector<Attempts::Held> Attempts::take_held() {
  std::fill(held_of_.begin(), held_of_.end(), 0);
  return std::exchange(held_, {});
}

void Attempts::tell(const std::vector<bool>& ranks) {
  for (size_t local = 0; local < ranks_.size(); ++local) {
    ranks_[local].must_redo = ranks_[local].must_redo || ranks[local];
  }
}

}  // namespace cgx::scheduler
