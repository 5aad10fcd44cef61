// Majority vote: every machine gives each value of a bucket one vote, its sign, and the bucket its
// scale. The result is the sum of the scales with the sign of most votes; where votes are even,
// values at even places are positive, the others negative. A codec asks for it by kVotes.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

template <class Codec>
CGX_SHARED constexpr bool is_vote() {
  if constexpr (requires { Codec::kVotes; }) return Codec::kVotes;
  return false;
}

// Nobody votes where no rank of the machine has the tensor; its sum, zeros, would be all positive.
CGX_SHARED inline bool has_no_vote(const RawView& raw) {
  return raw.rank_count == 0;
}
CGX_SHARED inline float vote_of(float x) {
  return bits_of(x) & kSignBit ? -1.0f : 1.0f;
}
// What encoded bits say as votes. Not the signs of what they decode to: where all values of a
// bucket are zeros, some of them negative, that has none.
template <class Meta>
CGX_SHARED constexpr Meta ballot() {
  return {.positive = 1.0f, .negative = -1.0f};
}
// What value `e` of a bucket becomes. `weight` is the sum of the scales: not negative, or NaN.
CGX_SHARED inline float outcome_of(float votes, uint32_t e, float weight) {
  const bool negative = votes < 0 || (votes == 0 && e % 2 == 1);
  return canonical_nan(negative ? 0.0f - weight : weight);
}

// The votes of values x, added to `sum`.
inline void add_votes(const float* x, uint32_t n, float* sum) {
  for (uint32_t e = 0; e < n; ++e) sum[e] += vote_of(x[e]);
}

// Votes become values.
inline void count_votes(float* sum, uint32_t n, float weight) {
  for (uint32_t e = 0; e < n; ++e) sum[e] = outcome_of(sum[e], e, weight);
}

}  // namespace
}  // namespace cgx::kernels
