#include "scheduler/communicator/snapshot.h"

#include <algorithm>

#include "scheduler/exchange/prepared_plan.h"

namespace cgx::scheduler {

void show_plan(CommunicatorSnapshot& shown) {
  if (shown.plan == nullptr) return;
  const PlanFacts& facts = *shown.plan;
  shown.policy = facts.policy;
  shown.groups.clear();
  for (uint32_t g = 0; g < facts.layouts.size(); ++g) {
    const Group& group = facts.plan.groups[g];
    const bool apart =
        std::any_of(group.segments.begin(), group.segments.end(),
                    [](const Segment& segment) { return segment.rack_spec.has_value(); });
    const GroupLayout& layout = facts.layouts[g];
    shown.groups.push_back(
        GroupSnapshot{g, static_cast<uint32_t>(group.segments.size()), layout.raw_bytes(),
                      layout.encoded_bytes(), collective_name(group.way.collective),
                      reason_text(group.way.reason), apart ? layout.rack_encoded_bytes() : 0});
  }
  shown.tensors.clear();
  for (uint32_t t = 0; t < facts.table->size(); ++t) {
    const TensorDesc& tensor = (*facts.table)[t];
    shown.tensors.push_back(TensorSnapshot{tensor.name, tensor.dtype, tensor.elements, tensor.shape,
                                           facts.first_group_of(t), facts.spec_of(t), "",
                                           shown.norms[t].intended_sq, shown.norms[t].sent_sq,
                                           facts.rack_spec_of(t)});
  }
}

void show_reasons(CommunicatorSnapshot& shown) {
  if (shown.plan == nullptr || shown.plan->decisions == nullptr) return;
  const Decisions& decisions = *shown.plan->decisions;
  const Policy& policy = shown.plan->policy;
  const bool ceilings =
      policy.ceilings != CeilingPlanner::kpolicy && policy.mode != PlanMode::kAuto;
  for (uint32_t t = 0; t < decisions.tensors(); ++t) {
    TensorSnapshot& tensor = shown.tensors[t];
    if (tensor.codec == decisions.spec_of(t, policy)) {
      tensor.reason = decisions.reason(t);
    } else if (ceilings && decisions.by_default(t)) {
      tensor.reason =
          std::string("ceilings: ") + kCeilingPlanners[static_cast<size_t>(policy.ceilings)];
    } else {
      tensor.reason = "mode auto: as its search has it now";
    }
  }
}

}  // namespace cgx::scheduler
