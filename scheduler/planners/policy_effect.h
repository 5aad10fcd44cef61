// What a policy does to a table of tensors: the codec of each, totals by codec, the reach of each
// rule. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/plan/decisions.h"

namespace cgx::scheduler {

struct PolicyEffect {
  std::vector<CodecSpec> specs;  // by tensor
  std::vector<RuleReach> rules;
};
// `goes_on`: asked between some names and the next; false: an error says that it takes too long.
Result<PolicyEffect> effect_of(const TensorTable& table, const Policy& policy,
                               const std::function<bool()>& goes_on = {});

struct CodecTotal {
  CodecSpec spec;
  uint32_t tensors = 0;
  uint64_t bytes = 0;  // the gradients of one step, encoded once; at most, where the size varies
};
// In the order in which codecs appear in the table. REQUIRES: specs.size() == table.size().
std::vector<CodecTotal> totals_of(const TensorTable& table, const std::vector<CodecSpec>& specs);

// Tensors that travel exactly under `before` and not under `after`.
std::vector<uint32_t> made_lossy(const std::vector<CodecSpec>& before,
                                 const std::vector<CodecSpec>& after);

// One sentence for each rule that does nothing, or less than its pattern says.
std::vector<std::string> idle_rules(const Policy& policy, const std::vector<RuleReach>& rules);

}  // namespace cgx::scheduler
