#include "scheduler/planners/planner.h"

#include <algorithm>

#include "kernels/codec.h"
#include "scheduler/plan/way.h"

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
  return Choice{
      .spec = policy_.default_codec, .reason = "default", .found = found, .by_default = true};
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

namespace {

// Segments in the order of arrival, in groups of about as many bytes as the policy says.
class GroupMaker {
 public:
  GroupMaker(const Policy& policy, std::vector<Group>& groups)
      : policy_(policy), may_gather_(policy.collective == CollectiveWish::kAuto), groups_(groups) {}

  void add(const Segment& segment, uint64_t bytes) {
    const kernels::CodecRow* const row =
        segment.spec.codec == 0 ? nullptr : kernels::find_codec(segment.spec.codec);
    const bool full = bytes_ + bytes > policy_.group_bytes;
    // A group goes one way: what gathers well and what does not travel apart, raw tensors with
    // either.
    const bool apart = may_gather_ && row && lossy_ && row->gathers != lossy_->gathers;
    if (groups_.empty() || full || apart) {
      groups_.emplace_back();
      bytes_ = 0;
      lossy_ = nullptr;
    }
    groups_.back().segments.push_back(segment);
    bytes_ += bytes;
    if (row) lossy_ = row;
  }

 private:
  const Policy& policy_;
  const bool may_gather_;
  std::vector<Group>& groups_;
  uint64_t bytes_ = 0;                        // of the last group
  const kernels::CodecRow* lossy_ = nullptr;  // of it
};

// Of a tensor that is cut; 0: it stays whole.
uint64_t buckets_of_piece(uint32_t tensor, const CodecSpec& spec, const PlanInputs& inputs) {
  const TensorDesc& what = inputs.table[tensor];
  const uint64_t limit = inputs.policy.segment_bytes;
  if (limit == 0 || what.bytes() <= limit) return 0;
  return std::max<uint64_t>(1, limit / (uint64_t{spec.bucket} * dtype_bytes(what.dtype)));
}

uint64_t piece_count(uint32_t tensor, const CodecSpec& spec, const PlanInputs& inputs) {
  const uint64_t each = buckets_of_piece(tensor, spec, inputs);
  return each == 0 ? 1 : (bucket_count({tensor, spec}, inputs.table) + each - 1) / each;
}

std::vector<Segment> cut(uint32_t tensor, const CodecSpec& spec, const PlanInputs& inputs) {
  const uint64_t each = buckets_of_piece(tensor, spec, inputs);
  if (each == 0) return {{tensor, spec}};
  const uint64_t all = bucket_count({tensor, spec}, inputs.table);
  std::vector<Segment> segments;
  for (uint64_t first = 0; first < all; first += each) {
    segments.push_back({tensor, spec, first, std::min(each, all - first)});
  }
  return segments;
}

}  // namespace

Result<std::vector<PlannedSegment>> segments_of(const PlanInputs& inputs) {
  CGX_ASSIGN_OR_RETURN(CodecChooser chooser,
                       CodecChooser::create(inputs.policy, inputs.table.size()));
  CGX_ASSERT(inputs.order.size() == inputs.table.size());
  std::vector<PlannedSegment> segments;
  uint64_t pieces = 0;
  for (uint32_t tensor : inputs.order) {
    CGX_ASSIGN_OR_RETURN(Choice choice, chooser.choose(inputs.table[tensor]));
    if (choice.by_default && !inputs.ceilings.empty()) choice.spec = inputs.ceilings[tensor];
    pieces += piece_count(tensor, choice.spec, inputs);
    if (pieces > std::max<uint64_t>(kSegmentsMax, inputs.table.size())) {
      return resource_exhausted(
          "policy: segment_bytes " + std::to_string(inputs.policy.segment_bytes) +
          " cuts the tensors into more than " + std::to_string(kSegmentsMax) + " pieces");
    }
    for (const Segment& segment : cut(tensor, choice.spec, inputs)) {
      segments.push_back({segment, choice.by_default});
    }
  }
  return segments;
}

Result<Plan> make_plan(const PlanInputs& inputs) {
  CGX_ASSIGN_OR_RETURN(const std::vector<PlannedSegment> segments, segments_of(inputs));
  std::vector<Group> groups;
  GroupMaker maker(inputs.policy, groups);
  for (const PlannedSegment& each : segments) {
    maker.add(each.segment, segment_bytes(each.segment, inputs.table));
  }
  for (Group& group : groups) {
    group.way = choose_way({.wish = inputs.policy.collective,
                            .machines = inputs.machines,
                            .rack_machines = inputs.policy.rack_machines},
                           group, inputs.table);
  }
  return make_plan(inputs, std::move(groups));
}

Result<Plan> make_plan(const PlanInputs& inputs, std::vector<Group> groups) {
  Plan plan{.epoch = inputs.epoch,
            .machines = inputs.machines,
            .table_hash = table_hash(inputs.table),
            .policy_version = inputs.policy_version,
            .window = inputs.policy.window,
            .weight = inputs.policy.weight,
            .replica_check_steps = inputs.policy.replica_check_steps,
            .feedback_decay = inputs.policy.feedback_decay,
            .stats_steps = inputs.policy.stats_steps,
            .limits = part_limits(inputs.slab_bytes),
            .groups = std::move(groups)};
  CGX_RETURN_IF_ERROR(check_plan(plan, inputs.table));
  return plan;
}

}  // namespace cgx::scheduler
