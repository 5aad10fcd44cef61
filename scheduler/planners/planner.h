// Makes a plan from a table, a policy and an order of arrival. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/plan/decisions.h"
#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

// More would keep whoever plans busy.
constexpr uint64_t kSegmentsMax = 1 << 18;
// Of a group, so that whoever moves gradients begins and ends one in a fraction of a millisecond.
constexpr size_t kGroupSegmentsMax = 1024;

struct PlanInputs {
  const TensorTable& table;
  const Policy& policy;
  uint64_t policy_version = 0;
  uint64_t epoch = 0;
  std::span<const uint32_t> order;  // tensor indices in the order they are expected to arrive
  uint32_t machines = 1;
  uint64_t slab_bytes = 256 * 1024;  // a frame must fit
  // By tensor, instead of the policy's default codec; empty: that.
  std::span<const CodecSpec> ceilings = {};
  // Of the table; null, or not of the policy's rules: they are matched again.
  const Decisions* decisions = nullptr;
  uint32_t sites_each = 0;  // machines that share a daemon (View); 0: none do

  uint32_t rack_machines() const {
    return policy.rack_machines != 0 ? policy.rack_machines : sites_each;
  }
};
Result<Plan> make_plan(const PlanInputs& inputs);
// The same of groups that somebody proposes, checked.
Result<Plan> make_plan(const PlanInputs& inputs, std::vector<Group> groups);

struct PlannedSegment {
  Segment segment;
  bool by_default = false;  // its codec: no rule and nothing about the tensor decided
};
// All segments in the order of arrival, as the policy says.
Result<std::vector<PlannedSegment>> segments_of(const PlanInputs& inputs);

// Gradients arrive last layer first: the order until arrivals have been seen.
std::vector<uint32_t> reverse_registration(size_t tensors);

// The order for a table whose tensors have arrived: from the end they came from, and last what no
// rank had. Close arrivals, which differ from run to run, do not show in it: equal runs get equal
// plans.
std::vector<uint32_t> shared_order(const std::vector<uint32_t>& arrived,
                                   const std::vector<uint32_t>& absent);

}  // namespace cgx::scheduler
