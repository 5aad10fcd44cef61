#include "scheduler/communicator/snapshot.h"

#include <algorithm>

#include "kernels/codec.h"
#include "scheduler/exchange/prepared_plan.h"
#include "scheduler/planners/ceilings.h"

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

namespace {

// Of the plan that runs, as far as codecs go: other plans have kept the codecs of those before.
const PlanOrigin* origin_of_codecs(const CommunicatorSnapshot& shown) {
  const auto decides = [&](const SwitchSnapshot& one) {
    const auto by = [&](const char* who) { return one.origin.who == who; };
    return one.epoch <= shown.epoch && (by(kByPlanner) || by(kByEarlierRun) || by(kByHistory) ||
                                        by(kByCommit) || by(kByPolicy));
  };
  const auto found = std::find_if(shown.switches.rbegin(), shown.switches.rend(), decides);
  return found == shown.switches.rend() ? nullptr : &found->origin;
}

// Ceilings or guards may have changed codecs since, which only their coordinator knows.
bool ceilings_came(const CommunicatorSnapshot& shown) {
  return std::any_of(shown.switches.begin(), shown.switches.end(), [](const SwitchSnapshot& one) {
    return one.origin.who == kByCeilings || one.origin.who == kByGuard;
  });
}

// Of tensors whose codec is neither the policy's nor a rule's.
struct OtherReasons {
  std::shared_ptr<const SetCeilings> set;
  std::string ceiling, otherwise;

  std::string of(uint32_t tensor, const CodecSpec& codec) const {
    const bool at_ceiling =
        set != nullptr && tensor < set->ceilings.size() && codec == set->ceilings[tensor];
    if (!at_ceiling) return otherwise;
    const bool guarded = tensor < set->base.size() && !(codec == set->base[tensor]);
    return guarded ? "guard: hurt by " + kernels::to_string(set->base[tensor]) : ceiling;
  }
};

OtherReasons other_reasons(const CommunicatorSnapshot& shown) {
  const Policy& policy = shown.plan->policy;
  const bool searches = policy.mode == PlanMode::kAuto;
  const bool unknown = shown.ceilings == nullptr && !strengths_of(policy).empty();
  OtherReasons reasons{shown.ceilings, "ceilings: ", ""};
  reasons.ceiling += kCeilingPlanners[static_cast<size_t>(policy.ceilings)];
  const PlanOrigin* const origin = origin_of_codecs(shown);
  const bool kept = origin != nullptr && origin->who == kByEarlierRun;
  const bool repeated = origin != nullptr && origin->who == kByHistory;
  if (repeated || (kept && !(unknown && ceilings_came(shown)))) {
    reasons.otherwise = origin->who + ": " + origin->why;
  } else if (unknown && searches) {
    reasons.otherwise =
        "mode auto: as its search, ceilings or guards have it now; machine 0 knows which";
  } else if (unknown) {
    reasons.otherwise = reasons.ceiling + ", or guards below them; machine 0 knows which";
  } else {
    reasons.otherwise = searches ? "mode auto: as its search has it now" : reasons.ceiling;
  }
  return reasons;
}

}  // namespace

void show_reasons(CommunicatorSnapshot& shown) {
  if (shown.plan == nullptr || shown.plan->decisions == nullptr) return;
  const Decisions& decisions = *shown.plan->decisions;
  const OtherReasons others = other_reasons(shown);
  for (uint32_t t = 0; t < decisions.tensors(); ++t) {
    TensorSnapshot& tensor = shown.tensors[t];
    const bool decided = tensor.codec == decisions.spec_of(t, shown.plan->policy);
    tensor.reason = decided ? decisions.reason(t) : others.of(t, tensor.codec);
  }
}

}  // namespace cgx::scheduler
