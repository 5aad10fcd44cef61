// What the next communicators of a job's name begin with: policies that operators gave it, and what
// searches for plans have found out (kept_profiles.h).
// Thread rule: owned by the engine. Invariant: at most kMax; the user with most loses the one kept
// longest ago, so that nobody's names push out what is kept for others.
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

  // Whose is forgotten for it, if any.
  std::optional<KeptFor> keep(const KeptFor& whose, Value value) {
    forget(whose);
    kept_.push_back({whose, std::move(value)});
    if (kept_.size() <= kMax) return std::nullopt;
    const auto loses = std::max_element(
        kept_.begin(), kept_.end(),
        [&](const Kept& a, const Kept& b) { return kept_of(a.whose.uid) < kept_of(b.whose.uid); });
    const KeptFor forgotten = loses->whose;
    kept_.erase(loses);
    return forgotten;
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
  auto kept_of(uint32_t uid) const {
    return std::count_if(kept_.begin(), kept_.end(),
                         [&](const Kept& one) { return one.whose.uid == uid; });
  }

  std::deque<Kept> kept_;  // newest last
};

using KeptPolicies = KeptByName<Policy>;

}  // namespace cgx::scheduler
