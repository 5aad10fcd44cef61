// What a job's communicators start with: the daemon's default policy, with the weight its name
// earns. Thread rule: pure function.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/plan/pattern.h"
#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

class JobWeights {
 public:
  JobWeights() = default;
  static Result<JobWeights> create(const std::vector<JobWeight>& weights);

  // The first match decides; none keeps the policy's weight.
  Policy starting_policy(Policy base, const std::string& job) const;

 private:
  struct Row {
    Pattern pattern;
    uint32_t weight;
  };
  std::vector<Row> rows_;
};

}  // namespace cgx::scheduler
