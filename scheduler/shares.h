// How several users share what there is a limited number of. Work-conserving: anybody may take all
// but a reserve of an eighth, which is for those who have less than their floor, a 32nd of it all.
// Thread rule: a pure function.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::scheduler {

struct Use {
  uint64_t limit = 0;
  uint64_t all = 0;  // used by everybody
  uint64_t own = 0;  // of it, by who asks
};

constexpr uint64_t floor_of(uint64_t limit) {
  return std::max<uint64_t>(1, limit / 32);
}

// Whether one more may be taken.
constexpr bool may_take(const Use& use) {
  const uint64_t reserve = use.limit / 8;
  return use.all < use.limit && (use.own < floor_of(use.limit) || use.all + reserve < use.limit);
}

}  // namespace cgx::scheduler
