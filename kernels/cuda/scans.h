// What a team finds in one pass over a bucket: a codec's extent, sums and norms.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/team.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// The sum of f(e) in the order of sums.h: lane t has partials t and t + 32.
template <class Team, class F>
CGX_DEVICE float team_sum(Team& team, uint32_t n, F f) {
  static_assert(2 * Team::kSize == kPartials);
  typename Team::template Each<float> partials;
  team.lanes([&](uint32_t t) {
    float low = 0, high = 0;
    for (uint32_t e = t; e < n; e += kPartials) {
      low += f(e);
      if (e + Team::kSize < n) high += f(e + Team::kSize);
    }
    partials[t] = low + high;
  });
  return team.fold(partials);
}

// The sum of all lanes' x.
template <class T = uint32_t, class Team>
CGX_DEVICE T team_total(Team& team, const typename Team::template Each<T>& x) {
  return team.merge(x, [](T& a, T b) { a += b; });
}

template <class Team>
CGX_DEVICE uint32_t team_max_abs_bits(Team& team, const float* x, uint32_t n) {
  typename Team::template Each<uint32_t> largest;
  team.lanes([&](uint32_t t) {
    largest[t] = 0;
    for (uint32_t e = t; e < n; e += Team::kSize) {
      largest[t] = abs_bits(x[e]) > largest[t] ? abs_bits(x[e]) : largest[t];
    }
  });
  return team.merge(largest, [](uint32_t& a, uint32_t b) { a = b > a ? b : a; });
}

template <class Codec, class Team>
CGX_DEVICE typename Codec::Extent team_fold(Team& team, const float* x, uint32_t n) {
  typename Team::template Each<typename Codec::Extent> extent;
  team.lanes([&](uint32_t t) {
    extent[t] = Codec::empty_extent();
    for (uint32_t e = t; e < n; e += Team::kSize) Codec::add(extent[t], x[e]);
  });
  return team.merge(extent, [](auto& a, const auto& b) { Codec::merge(a, b); });
}

// What a codec wants to know about a bucket: what it says itself, or a fold whose order does not
// matter.
template <class Codec, class Team>
CGX_DEVICE typename Codec::Extent team_extent(Team& team, const float* x, uint32_t n,
                                              const CodecSpec& spec) {
  if constexpr (requires { Codec::team_extent(team, x, n, spec); }) {
    return Codec::team_extent(team, x, n, spec);
  } else {
    return team_fold<Codec>(team, x, n);
  }
}

template <class Team, class F>
CGX_DEVICE double team_squared_norm(Team& team, uint32_t n, float scale, F f) {
  return unscaled_square(team_sum(team, n, [&](uint32_t e) { return square_of(f(e), scale); }),
                         scale);
}

}  // namespace
}  // namespace cgx::kernels
