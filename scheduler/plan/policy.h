// What the operator wants: the plain form of the policy message (proto/messages/policy.proto). Its
// keys are in policy.def.
// Rules are tried in order on the tensor's full name; the first match decides. Small tensors travel
// raw: only rules that say so reach them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/types.h"
#include "scheduler/plan/collective.h"

namespace cgx::scheduler {

struct PolicyRule {
  std::string
      match;  // regular expression (scheduler/plan/pattern.h), searched in the tensor's name
  CodecSpec codec;
  bool small = false;  // reaches small tensors, too
  friend bool operator==(const PolicyRule&, const PolicyRule&) = default;
};

// A one-dimensional tensor with fewer elements is taken for a bias or a norm.
constexpr uint64_t kVectorElements = 65'536;

// Who wanted a policy, when, why. Shown; it decides nothing but what `keep` says.
struct PolicyNote {
  std::string by, reason;  // by empty: the coordinator's configuration
  uint64_t unix_ns = 0;
  bool keep = false;  // later communicators of the job's name begin with it
  friend bool operator==(const PolicyNote&, const PolicyNote&) = default;
};

struct JobWeight {
  std::string match;  // regular expression, searched in the job's name; the first match decides
  uint32_t weight = 1;
};

// Who decides what a plan says beyond the rules: the policy alone, or a search that measures and
// tries plans, for which `default_codec` is the strongest codec it may take; or one for how much
// travels together alone.
enum class PlanMode : uint8_t { kFixed, kAuto, kMerge };
inline constexpr const char* kPlanModes[] = {"fixed", "auto", "merge"};

// Who says how strong a codec tensors may take that no rule matches: a row of ceilings.def.
enum class CeilingPlanner : uint8_t {
#define X(name, help) k##name,
#include "scheduler/plan/ceilings.def"
#undef X
};
inline constexpr const char* kCeilingPlanners[] = {
#define X(name, help) #name,
#include "scheduler/plan/ceilings.def"
#undef X
};
enum class LayerSolver : uint8_t { kExact, kKmeans };
inline constexpr const char* kLayerSolvers[] = {"exact", "kmeans"};

// What the choices are called in a policy's text, in their order.
inline std::span<const char* const> names_of(CollectiveWish) {
  return kCollectiveWishes;
}
inline std::span<const char* const> names_of(PlanMode) {
  return kPlanModes;
}
inline std::span<const char* const> names_of(CeilingPlanner) {
  return kCeilingPlanners;
}
inline std::span<const char* const> names_of(LayerSolver) {
  return kLayerSolvers;
}

inline constexpr size_t kRulesMax = 65536;  // one for each tensor of a large job

struct Policy {
  CodecSpec default_codec{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};
  std::optional<CodecSpec> rack_codec;  // within racks; none: each tensor's own
  std::vector<PolicyRule> rules;
  std::vector<CodecSpec> menu;  // auto: what it may choose from beside default_codec; empty:
                                // default_menu()
#define X(name, type, value) type name = value;
#include "scheduler/plan/policy.def"
#undef X
  PolicyNote note;
  friend bool operator==(const Policy&, const Policy&) = default;
};

// Whoever wanted them.
inline bool same_wish(Policy one, Policy other) {
  one.note = other.note = {};
  return one == other;
}

// What a search, or ceilings, found for the one holds for the other.
inline bool same_search(Policy one, const Policy& other) {
  one.weight = other.weight;
  one.window = other.window;
  one.stats_steps = other.stats_steps;
  one.replica_check_steps = other.replica_check_steps;
  one.feedback_decay = other.feedback_decay;
  return same_wish(std::move(one), other);
}

}  // namespace cgx::scheduler
