#include "scheduler/planner.h"

#include <algorithm>

#include "kernels/codec.h"
#include "scheduler/way.h"

namespace cgx::scheduler {

namespace {

// Empty: it is not.
std::string why_small(const Policy& policy, const TensorDesc& tensor) {
  if (tensor.elements < policy.min_elements) {
    return "fewer than " + std::to_string(policy.min_elements) + " elements";
  }
  const bool vector = tensor.shape.size() == 1 && !tensor.name.empty();
  if (policy.raw_one_dimensional && vector && tensor.elements < kVectorElements) {
    return "one-dimensional, fewer than " + std::to_string(kVectorElements) + " elements";
  }
  return "";
}

}  // namespace

Result<CodecChooser> CodecChooser::create(const Policy& policy, size_t tensors) {
  if (policy.rules.size() * tensors > kMatchesMax) {
    return resource_exhausted(
        "policy: " + std::to_string(policy.rules.size()) + " rules for " + std::to_string(tensors) +
        " tensors; rules x tensors may be " + std::to_string(kMatchesMax) + ", that is " +
        std::to_string(kMatchesMax / tensors) + " rules here (several patterns make one with '|')");
  }
  std::vector<std::string> texts;
  for (const PolicyRule& rule : policy.rules) texts.push_back(rule.match);
  CGX_ASSIGN_OR_RETURN(PatternSet patterns, PatternSet::compile(texts, "policy rule"));
  return CodecChooser(policy, std::move(patterns));
}

Result<Choice> CodecChooser::choose(const TensorDesc& tensor) {
  const CodecSpec raw{.codec = 0, .bucket = 512};
  if (!dtype_is_small_float(tensor.dtype)) return Choice{raw, "not a small float type"};
  const std::string small = why_small(policy_, tensor);
  CGX_ASSIGN_OR_RETURN(const std::span<const int> found, patterns_.found_in(tensor.name));
  for (const int number : found) {
    const PolicyRule& rule = policy_.rules[static_cast<size_t>(number)];
    if (!small.empty() && !rule.small) continue;
    const std::string reason = "rule " + std::to_string(number + 1) + ": " + rule.match;
    return Choice{rule.codec, reason, !small.empty(), number, found};
  }
  if (!small.empty()) return Choice{raw, small, true, -1, found};
  return Choice{policy_.default_codec, "default", false, -1, found};
}

std::vector<uint32_t> reverse_registration(size_t tensors) {
  std::vector<uint32_t> order(tensors);
  for (size_t i = 0; i < tensors; ++i) order[i] = static_cast<uint32_t>(tensors - 1 - i);
  return order;
}

std::vector<uint32_t> shared_order(const std::vector<uint32_t>& arrived,
                                   const std::vector<uint32_t>& absent) {
  const auto count = static_cast<double>(arrived.size());
  const double middle = (count - 1) / 2;
  double likeness = 0;  // of the arrival with the registration: -1 to 1
  for (size_t i = 0; i < arrived.size(); ++i) {
    likeness += (static_cast<double>(i) - middle) * (arrived[i] - middle);
  }
  likeness *= 12 / std::max(1.0, count * (count * count - 1));
  std::vector<uint32_t> order = reverse_registration(arrived.size());
  if (likeness > 0.5) std::reverse(order.begin(), order.end());
  std::vector<bool> gone(arrived.size());
  for (const uint32_t tensor : absent) gone[tensor] = true;
  std::stable_partition(order.begin(), order.end(), [&](uint32_t t) { return !gone[t]; });
  return order;
}

Result<Plan> make_plan(const PlanInputs& inputs) {
  CGX_ASSIGN_OR_RETURN(CodecChooser chooser,
                       CodecChooser::create(inputs.policy, inputs.table.size()));
  CGX_ASSERT(inputs.order.size() == inputs.table.size());
  Plan plan{.epoch = inputs.epoch,
            .machines = inputs.machines,
            .table_hash = table_hash(inputs.table),
            .policy_version = inputs.policy_version,
            .window = inputs.policy.window,
            .weight = inputs.policy.weight,
            .replica_check_steps = inputs.policy.replica_check_steps,
            .feedback_decay = inputs.policy.feedback_decay,
            .stats_steps = inputs.policy.stats_steps,
            .limits = part_limits(inputs.slab_bytes)};
  const bool may_gather = inputs.policy.collective == CollectiveWish::kAuto;
  uint64_t group_bytes = 0;
  const kernels::CodecRow* lossy = nullptr;  // of the group so far
  for (uint32_t tensor : inputs.order) {
    CGX_ASSIGN_OR_RETURN(const Choice choice, chooser.choose(inputs.table[tensor]));
    const CodecSpec& spec = choice.spec;
    const kernels::CodecRow* const row =
        spec.codec == 0 ? nullptr : kernels::find_codec(spec.codec);
    const uint64_t bytes = inputs.table[tensor].bytes();
    const bool full = group_bytes + bytes > inputs.policy.group_bytes;
    // A group goes one way: what gathers well and what does not travel apart, raw tensors with
    // either.
    const bool apart = may_gather && row && lossy && row->gathers != lossy->gathers;
    if (plan.groups.empty() || full || apart) {
      plan.groups.emplace_back();
      group_bytes = 0;
      lossy = nullptr;
    }
    plan.groups.back().segments.push_back({tensor, spec});
    group_bytes += bytes;
    if (row) lossy = row;
  }
  for (Group& group : plan.groups) {
    group.way = choose_way({.wish = inputs.policy.collective,
                            .machines = inputs.machines,
                            .rack_machines = inputs.policy.rack_machines},
                           group, inputs.table);
  }
  CGX_RETURN_IF_ERROR(check_plan(plan, inputs.table));
  return plan;
}

}  // namespace cgx::scheduler
