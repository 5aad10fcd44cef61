#include "scheduler/communicator/snapshot.h"

#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {

void show_plan(CommunicatorSnapshot& shown) {
  if (shown.plan == nullptr) return;
  const PlanFacts& facts = *shown.plan;
  shown.policy = facts.policy;
  shown.groups.clear();
  for (uint32_t g = 0; g < facts.layouts.size(); ++g) {
    shown.groups.push_back(
        GroupSnapshot{g, static_cast<uint32_t>(facts.plan.groups[g].segments.size()),
                      facts.layouts[g].raw_bytes(), facts.layouts[g].encoded_bytes(),
                      collective_name(facts.plan.groups[g].way.collective),
                      reason_text(facts.plan.groups[g].way.reason)});
  }
  shown.tensors.clear();
  for (uint32_t t = 0; t < facts.table->size(); ++t) {
    const TensorDesc& tensor = (*facts.table)[t];
    shown.tensors.push_back(TensorSnapshot{tensor.name, tensor.dtype, tensor.elements, tensor.shape,
                                           facts.first_group_of(t), facts.spec_of(t), "",
                                           shown.norms[t].intended_sq, shown.norms[t].sent_sq});
  }
}

void show_reasons(CommunicatorSnapshot& shown) {
  if (shown.plan == nullptr) return;
  const TensorTable& table = *shown.plan->table;
  Result<CodecChooser> chooser = CodecChooser::create(shown.plan->policy, table.size());
  if (!chooser.ok()) return;  // another machine made the plan, with other limits
  for (uint32_t t = 0; t < table.size(); ++t) {
    const Result<Choice> choice = chooser->choose(table[t]);
    if (!choice.ok()) continue;
    const bool as_said = shown.tensors[t].codec == choice->spec;
    const Policy& policy = shown.plan->policy;
    const bool ceiling = policy.ceilings != CeilingPlanner::kpolicy && choice->by_default &&
                         policy.mode != PlanMode::kAuto;
    const std::string other =
        ceiling ? std::string("ceilings: ") + kCeilingPlanners[static_cast<size_t>(policy.ceilings)]
                : "mode auto: the faster one";
    shown.tensors[t].reason = as_said ? choice->reason : other;
  }
}

}  // namespace cgx::scheduler
