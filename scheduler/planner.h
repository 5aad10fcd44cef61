// Makes a plan from a table, a policy and an order of arrival. Pure.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/plan.h"

namespace cgx::scheduler {

struct Choice {
  CodecSpec spec;
  std::string reason;  // "default", "rule 2: \\.weight$", "fewer than 1024 elements", ...
};

// Compiled once per policy; an error names the rule and what its regular expression lacks.
class CodecChooser {
 public:
  static Result<CodecChooser> create(const Policy& policy);
  Choice choose(const TensorDesc& tensor) const;

 private:
  struct Rule;
  explicit CodecChooser(const Policy& policy) : policy_(policy) {}
  Policy policy_;
  std::vector<std::shared_ptr<const Rule>> rules_;
};

struct PlanInputs {
  const TensorTable& table;
  const Policy& policy;
  uint64_t policy_version = 0;
  uint64_t epoch = 0;
  std::span<const uint32_t> order;  // tensor indices in the order they are expected to arrive
};
Result<Plan> make_plan(const PlanInputs& inputs);

// Gradients arrive last layer first: the order until arrivals have been seen.
std::vector<uint32_t> reverse_registration(size_t tensors);

// The order for a table whose tensors have arrived: from the end they came from, and last what no
// rank had. Close arrivals, which differ from run to run, do not show in it: equal runs get equal
// plans.
std::vector<uint32_t> shared_order(const std::vector<uint32_t>& arrived,
                                   const std::vector<uint32_t>& absent);

}  // namespace cgx::scheduler
