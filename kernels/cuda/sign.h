// Signs as kernels have them: how a team finds a bucket's means.
#pragma once

#include "kernels/codecs/sign.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/scans.h"

namespace cgx::kernels {
namespace {

template <bool votes>
struct MeanSignKernel : Signed<votes> {
  using Extent = MeanMagnitude::Extent;
  template <class Team>
  static CGX_DEVICE Extent team_extent(Team& team, const float* x, uint32_t n, const CodecSpec&) {
    Extent extent{.max_abs = team_max_abs_bits(team, x, n)};
    typename Team::template Each<uint32_t> smallest;
    team.lanes([&](uint32_t t) {
      smallest[t] = kAbsMask;
      for (uint32_t e = t; e < n; e += Team::kSize) {
        smallest[t] = abs_bits(x[e]) < smallest[t] ? abs_bits(x[e]) : smallest[t];
      }
    });
    extent.min_abs = team.merge(smallest, [](uint32_t& a, uint32_t b) { a = b < a ? b : a; });
    const float scale = sum_scale(extent.max_abs);
    extent.sum = team_sum(team, n, [&](uint32_t e) { return MeanMagnitude::summand(x[e], scale); });
    return extent;
  }
};
template <bool votes>
struct KernelOf<Signed<votes>> {
  using Type = MeanSignKernel<votes>;
};

struct OneBitKernel : OneBit {
  template <class Team>
  static CGX_DEVICE Extent team_extent(Team& team, const float* x, uint32_t n, const CodecSpec&) {
    Extent extent{.max_abs = team_max_abs_bits(team, x, n)};
    const float scale = sum_scale(extent.max_abs);
    extent.positive = team_sum(team, n, [&](uint32_t e) { return summand(x[e], scale, 0); });
    extent.negative = team_sum(team, n, [&](uint32_t e) { return summand(x[e], scale, 1); });
    typename Team::template Each<uint32_t> negatives;
    team.lanes([&](uint32_t t) {
      negatives[t] = 0;
      for (uint32_t e = t; e < n; e += Team::kSize) negatives[t] += bits_of(x[e]) >> 31;
    });
    extent.negatives = team_total(team, negatives);
    return extent;
  }
};
template <>
struct KernelOf<OneBit> {
  using Type = OneBitKernel;
};

}  // namespace
}  // namespace cgx::kernels
