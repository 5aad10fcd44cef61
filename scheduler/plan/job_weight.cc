#include "scheduler/plan/job_weight.h"

namespace cgx::scheduler {

Result<JobWeights> JobWeights::create(const std::vector<JobWeight>& weights) {
  JobWeights result;
  for (const JobWeight& one : weights) {
    CGX_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(one.match));
    result.rows_.push_back({std::move(pattern), one.weight});
  }
  return result;
}

Policy JobWeights::starting_policy(Policy base, const std::string& job) const {
  for (const Row& row : rows_) {
    if (!row.pattern.found_in(job)) continue;
    base.weight = row.weight;
    break;
  }
  return base;
}

}  // namespace cgx::scheduler
