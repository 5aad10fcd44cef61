#include "scheduler/planners/planner.h"

#include <algorithm>

#include "kernels/codec.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {

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
    const bool full = bytes_ + bytes > policy_.group_bytes ||
                      (!groups_.empty() && groups_.back().segments.size() >= kGroupSegmentsMax);
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

// Those of the question where they hold for its policy; otherwise made here, and kept in `made`.
Result<const Decisions*> decisions_of(const PlanInputs& inputs, DecisionsPtr& made) {
  if (inputs.decisions != nullptr && inputs.decisions->hold_for(inputs.policy)) {
    CGX_ASSERT(inputs.decisions->tensors() == inputs.table.size());
    return inputs.decisions;
  }
  CGX_ASSIGN_OR_RETURN(made, Decisions::create(inputs.policy, inputs.table));
  return made.get();
}

}  // namespace

Result<std::vector<PlannedSegment>> segments_of(const PlanInputs& inputs) {
  DecisionsPtr made;
  CGX_ASSIGN_OR_RETURN(const Decisions* held, decisions_of(inputs, made));
  const Decisions& decisions = *held;
  CGX_ASSERT(inputs.order.size() == inputs.table.size());
  std::vector<PlannedSegment> segments;
  uint64_t pieces = 0;
  for (uint32_t tensor : inputs.order) {
    const bool by_default = decisions.by_default(tensor);
    const bool under_ceiling = by_default && !inputs.ceilings.empty();
    const CodecSpec spec =
        under_ceiling ? inputs.ceilings[tensor] : decisions.spec_of(tensor, inputs.policy);
    pieces += piece_count(tensor, spec, inputs);
    if (pieces > std::max<uint64_t>(kSegmentsMax, inputs.table.size())) {
      return resource_exhausted(
          "policy: segment_bytes " + std::to_string(inputs.policy.segment_bytes) +
          " cuts the tensors into more than " + std::to_string(kSegmentsMax) + " pieces");
    }
    for (const Segment& segment : cut(tensor, spec, inputs)) {
      segments.push_back({segment, by_default});
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
                            .rack_machines = inputs.rack_machines(),
                            .sites_each = inputs.sites_each},
                           group, inputs.table);
  }
  return make_plan(inputs, std::move(groups));
}

Result<Plan> make_plan(const PlanInputs& inputs, std::vector<Group> groups) {
  for (Group& group : groups) set_rack_specs(inputs.policy, group);
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
