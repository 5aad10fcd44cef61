// Majority vote: every machine gives each value of a bucket one vote, its sign, and the bucket its
// scale. The result is the sum of the scales with the sign of most votes; where votes are even,
// values at even places are positive, the others negative. A codec asks for it by kVotes.
#pragma once

#include <cstdint>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

template <class Codec>
constexpr bool is_vote() {
  if constexpr (requires { Codec::kVotes; }) return Codec::kVotes;
  return false;
}

// x := the votes of values x, added to `sum`.
inline void add_votes(const float* x, uint32_t n, float* sum) {
  for (uint32_t e = 0; e < n; ++e) sum[e] += bits_of(x[e]) & kSignBit ? -1.0f : 1.0f;
}

// Votes become values. `weight` is the sum of the scales: not negative, or NaN.
inline void count_votes(float* sum, uint32_t n, float weight) {
  for (uint32_t e = 0; e < n; ++e) {
    const bool negative = sum[e] < 0 || (sum[e] == 0 && e % 2 == 1);
    sum[e] = canonical_nan(negative ? 0.0f - weight : weight);
  }
}

}  // namespace
}  // namespace cgx::kernels
