#include "scheduler/communicator/attempts.h"

#include <string>

namespace cgx::scheduler {

Status Attempts::check(uint32_t local, uint32_t attempt, const Status& failure) const {
  if (current(local, attempt)) return {};
  if (!failure.ok()) return failure;
  return {StatusCode::kSTEP_ORDER, "attempt " + std::to_string(attempt) +
                                       " of the step, the current one is " +
                                       std::to_string(ranks_[local].attempt)};
}

Status Attempts::hold(uint32_t local, const cgx_submit_record& record) {
  constexpr size_t kHeldMax = 64 * 1024;  // clients have 8192 completions to come at most
  if (held_.size() >= kHeldMax) return protocol_error("more records than completions are free");
  held_.push_back({local, record});
  return {};
}

void Attempts::tell(const std::vector<bool>& ranks) {
  for (size_t local = 0; local < ranks_.size(); ++local) {
    ranks_[local].must_redo = ranks_[local].must_redo || ranks[local];
  }
}

}  // namespace cgx::scheduler
