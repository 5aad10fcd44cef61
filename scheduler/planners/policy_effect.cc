#include "scheduler/planners/policy_effect.h"

#include <algorithm>

#include "kernels/codec.h"

namespace cgx::scheduler {
namespace {

constexpr uint8_t kRaw = 0;

std::string idle_text(const RuleReach& reach) {
  if (reach.found == 0) return "matches no tensor";
  if (reach.other == reach.found) {
    return "matches tensors only whose type no codec takes: they travel as they are";
  }
  if (reach.decided == 0 && reach.spared + reach.other == reach.found) {
    return "matches small tensors only, which travel uncompressed: add small: true to reach them";
  }
  return reach.decided == 0 ? "decides nothing: rules before it match the same tensors" : "";
}

}  // namespace

Result<PolicyEffect> effect_of(const TensorTable& table, const Policy& policy,
                               const std::function<bool()>& goes_on) {
  CGX_ASSIGN_OR_RETURN(DecisionsMaker maker, DecisionsMaker::begin(policy, table));
  for (;;) {
    CGX_ASSIGN_OR_RETURN(const bool done, maker.work(table));
    if (done) break;
    if (goes_on && !goes_on()) {
      return Status(StatusCode::kTIMED_OUT,
                    "the rules take too long to match the names of " +
                        std::to_string(table.size()) +
                        " tensors: use patterns without repetitions of what may be any letter");
    }
  }
  const DecisionsPtr decisions = maker.made();
  PolicyEffect effect{.rules = decisions->reach()};
  for (uint32_t tensor = 0; tensor < table.size(); ++tensor) {
    effect.specs.push_back(decisions->spec_of(tensor, policy));
  }
  return effect;
}

std::vector<CodecTotal> totals_of(const TensorTable& table, const std::vector<CodecSpec>& specs) {
  CGX_ASSERT(specs.size() == table.size());
  std::vector<CodecTotal> totals;
  for (size_t t = 0; t < table.size(); ++t) {
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const CodecTotal& one) { return one.spec == specs[t]; });
    if (total == totals.end()) total = totals.insert(total, {specs[t]});
    ++total->tensors;
    total->bytes += kernels::encoded_bytes(specs[t], table[t].dtype, table[t].elements);
  }
  return totals;
}

std::vector<uint32_t> made_lossy(const std::vector<CodecSpec>& before,
                                 const std::vector<CodecSpec>& after) {
  std::vector<uint32_t> tensors;
  for (uint32_t t = 0; t < std::min(before.size(), after.size()); ++t) {
    if (before[t].codec == kRaw && after[t].codec != kRaw) tensors.push_back(t);
  }
  return tensors;
}

std::vector<std::string> idle_rules(const Policy& policy, const std::vector<RuleReach>& rules) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string text = idle_text(rules[i]);
    if (text.empty()) continue;
    texts.push_back("rule " + std::to_string(i + 1) + " (" + policy.rules[i].match + ") " + text);
  }
  return texts;
}

}  // namespace cgx::scheduler
