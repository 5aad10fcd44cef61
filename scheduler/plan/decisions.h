// What decides the codec of each tensor: a policy's rules matched against a table, which takes a
// pass over every name, so it is done once and kept with the plan. Immutable, shared by reference
// on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/plan/pattern.h"
#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

// Names to which rules are held; more would keep whoever plans busy.
constexpr uint64_t kMatchesMax = 1 << 20;

struct RuleReach {
  uint32_t found = 0;    // tensors whose names it matches
  uint32_t decided = 0;  // for which it is the first that counts
  uint32_t spared = 0;   // small ones, which it may not reach
  uint32_t other = 0;    // of types that no codec takes
};

class Decisions {
 public:
  // An error names the rule and what its regular expression lacks, or how many rules and tensors
  // are too many together.
  static Result<std::shared_ptr<const Decisions>> create(const Policy& policy,
                                                         const TensorTable& table);
  // Under this policy, too, whose rules are the same but for their codecs, each tensor of that
  // table is decided so.
  bool hold_for(const Policy& policy) const;

  // REQUIRES: hold_for(policy).
  CodecSpec spec_of(uint32_t tensor, const Policy& policy) const;
  // Nothing but the policy's default codec decided.
  bool by_default(uint32_t tensor) const { return decided_[tensor] == kByDefault; }
  // "default", "rule 2: \\.weight$", "fewer than 1024 elements", ...
  std::string reason(uint32_t tensor) const;
  const std::vector<RuleReach>& reach() const { return reach_; }  // by rule
  uint32_t tensors() const { return static_cast<uint32_t>(decided_.size()); }
  uint64_t bytes() const;

 private:
  friend class DecisionsMaker;
  // Instead of a rule's number.
  static constexpr int32_t kByDefault = -1, kByType = -2, kByElements = -3, kByVector = -4;

  explicit Decisions(const Policy& policy)
      : rules_(policy.rules),
        min_elements_(policy.min_elements),
        raw_one_dimensional_(policy.raw_one_dimensional),
        reach_(policy.rules.size()) {}
  int32_t why_small(const TensorDesc& tensor) const;
  void decide(const TensorDesc& tensor, std::span<const int> found);

  std::vector<PolicyRule> rules_;
  uint64_t min_elements_;
  bool raw_one_dimensional_;
  std::vector<int32_t> decided_;  // by tensor: the rule, or why none
  std::vector<RuleReach> reach_;
};
using DecisionsPtr = std::shared_ptr<const Decisions>;

// Makes them some names at a time. Names and patterns are a user's, and a pattern may take ten
// microseconds for each letter, which is minutes for a large table: others' plans come between.
class DecisionsMaker {
 public:
  static constexpr size_t kSliceBytes = 4096;  // of names

  static Result<DecisionsMaker> begin(const Policy& policy, const TensorTable& table);
  // Goes on with the same table; true: done.
  Result<bool> work(const TensorTable& table);
  DecisionsPtr made() const { return made_; }  // once it is done

 private:
  DecisionsMaker(PatternSet patterns, std::shared_ptr<Decisions> made)
      : patterns_(std::move(patterns)), made_(std::move(made)) {}

  PatternSet patterns_;
  std::shared_ptr<Decisions> made_;
};

}  // namespace cgx::scheduler
