// What a team finds in one pass over a bucket: a codec's extent, sums and norms.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/views.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// The sum of f(e) in the order of sums.h: lane t has partials t, t + kSize, ...
template <class Team, class F>
CGX_DEVICE float team_sum(Team& team, uint32_t n, F f) {
  constexpr uint32_t kOwn = kPartials / Team::kSize;
  typename Team::template Each<float> partials;
  team.lanes([&](uint32_t t) {
    float own[kOwn] = {};
    uint32_t e = t;
    for (; e - t + kPartials <= n; e += kPartials) {
      for (uint32_t i = 0; i < kOwn; ++i) own[i] += f(e + Team::kSize * i);
    }
    for (uint32_t i = 0; i < kOwn; ++i) {
      if (e + Team::kSize * i < n) own[i] += f(e + Team::kSize * i);
    }
    for (uint32_t half = kOwn / 2; half > 0; half /= 2) {
      for (uint32_t i = 0; i < half; ++i) own[i] += own[i + half];
    }
    partials[t] = own[0];
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

// The same where x is a team's scratch memory: each lane looks at the fours that it stored.
template <class Codec, class Team>
CGX_DEVICE typename Codec::Extent bucket_fold(Team& team, const float* x, uint32_t n) {
  typename Team::template Each<typename Codec::Extent> extent;
  team.lanes([&](uint32_t t) { extent[t] = Codec::empty_extent(); });
  const auto add = [&](uint32_t t, const Quad& four, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) Codec::add(extent[t], four.v[i]);
  };
  const auto load = [&](uint32_t e) { return line_at(x + e); };
  const uint32_t whole = n & ~3u;
  each_whole_quad(team, whole, load,
                  [&](uint32_t t, uint32_t, const Quad& four) { add(t, four, 4); });
  if (n > whole) {
    team.lanes([&](uint32_t t) {
      if (t == whole / 4 % Team::kSize) add(t, load(whole), n - whole);
    });
  }
  return team.merge(extent, [](auto& a, const auto& b) { Codec::merge(a, b); });
}

struct LargestMagnitude {
  using Extent = uint32_t;  // as bits
  CGX_DEVICE static Extent empty_extent() { return 0; }
  CGX_DEVICE static void add(Extent& extent, float x) { merge(extent, abs_bits(x)); }
  CGX_DEVICE static void merge(Extent& extent, Extent other) {
    extent = other > extent ? other : extent;
  }
};
template <class Team>
CGX_DEVICE uint32_t bucket_max_abs_bits(Team& team, const float* x, uint32_t n) {
  return bucket_fold<LargestMagnitude>(team, x, n);
}

// What a codec wants to know about a bucket: what it says itself, or a fold whose order does not
// matter.
template <class Codec, class Team>
CGX_DEVICE typename Codec::Extent team_extent(Team& team, const float* x, uint32_t n,
                                              const CodecSpec& spec) {
  if constexpr (requires { Codec::team_extent(team, x, n, spec); }) {
    return Codec::team_extent(team, x, n, spec);
  } else {
    return bucket_fold<Codec>(team, x, n);
  }
}

template <class Team, class F>
CGX_DEVICE double team_squared_norm(Team& team, uint32_t n, float scale, F f) {
  return unscaled_square(team_sum(team, n, [&](uint32_t e) { return square_of(f(e), scale); }),
                         scale);
}

}  // namespace
}  // namespace cgx::kernels
