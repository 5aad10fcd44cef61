// Signs as kernels have them: how a team finds a bucket's means.
#pragma once

#include "kernels/codecs/sign.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/scans.h"

namespace cgx::kernels {
namespace {

// Codes are plain in all buckets but those that are not finite.
template <class Numbers>
struct PlainSign : Numbers {
  CGX_DEVICE static bool is_plain(const SignMeta& meta) { return !meta.nonfinite; }
  CGX_DEVICE static uint32_t plain_code_of(float x, const SignMeta&, uint32_t) {
    return bits_of(x) >> 31;
  }
};

struct MagnitudeSpan {
  struct Extent {
    uint32_t most, least;  // as bits
  };
  CGX_DEVICE static Extent empty_extent() { return {0, kAbsMask}; }
  CGX_DEVICE static void add(Extent& extent, float x) { merge(extent, {abs_bits(x), abs_bits(x)}); }
  CGX_DEVICE static void merge(Extent& extent, const Extent& other) {
    extent.most = other.most > extent.most ? other.most : extent.most;
    extent.least = other.least < extent.least ? other.least : extent.least;
  }
};

template <bool votes>
struct MeanSignKernel : PlainSign<Signed<votes>> {
  using Extent = MeanMagnitude::Extent;
  template <class Team>
  static CGX_DEVICE Extent team_extent(Team& team, const float* x, uint32_t n, const CodecSpec&) {
    const MagnitudeSpan::Extent span = bucket_fold<MagnitudeSpan>(team, x, n);
    Extent extent{.max_abs = span.most, .min_abs = span.least};
    const float scale = sum_scale(extent.max_abs);
    extent.sum = team_sum(team, n, [&](uint32_t e) { return MeanMagnitude::summand(x[e], scale); });
    return extent;
  }
};
template <bool votes>
struct KernelOf<Signed<votes>> {
  using Type = MeanSignKernel<votes>;
};

struct OneBitKernel : PlainSign<OneBit> {
  template <class Team>
  static CGX_DEVICE Extent team_extent(Team& team, const float* x, uint32_t n, const CodecSpec&) {
    Extent extent{.max_abs = bucket_max_abs_bits(team, x, n)};
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
