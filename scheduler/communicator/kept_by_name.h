// What the next communicators of a job's name begin with: policies that operators gave it, and what
// searches for plans have found out (kept_profiles.h).
// Thread rule: owned by the engine. Invariant: at most kMax, the one kept longest ago goes first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

struct KeptFor {
  uint32_t uid = 0;
  std::string job, communicator;
  friend bool operator==(const KeptFor&, const KeptFor&) = default;
};

template <typename Value>
class KeptByName {
 public:
  static constexpr size_t kMax = 64;

  void keep(const KeptFor& whose, Value value) {
    forget(whose);
    if (kept_.size() == kMax) kept_.pop_front();
    kept_.push_back({whose, std::move(value)});
  }
  void forget(const KeptFor& whose) {
    std::erase_if(kept_, [&](const Kept& one) { return one.whose == whose; });
  }
  const Value* look(const KeptFor& whose) const {  // null: nothing is kept
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& one) { return one.whose == whose; });
    return found == kept_.end() ? nullptr : &found->value;
  }
  template <typename Visit>
  void each(const Visit& visit) const {  // the oldest first
    for (const Kept& one : kept_) visit(one.whose, one.value);
  }
  std::optional<Value> find(const KeptFor& whose) const {
    const Value* const found = look(whose);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }

 private:
  struct Kept {
    KeptFor whose;
    Value value;
  };
  std::deque<Kept> kept_;  // newest last
};

using KeptPolicies = KeptByName<Policy>;

}  // namespace cgx::scheduler
