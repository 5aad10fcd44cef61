// Levels around zero as kernels have them: one kernel per width for every norm and both ways of
// rounding, so for qsgd, int8 and terngrad.
#pragma once

#include "kernels/codecs/symmetric.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/scans.h"

namespace cgx::kernels {
namespace {

// Codes are plain where nothing is clipped or saturated.
template <uint32_t bits, Rounding rounding>
struct ClippedSymmetric : Symmetric<bits, rounding, Norm::kMax> {
  using Base = Symmetric<bits, rounding, Norm::kMax>;
  CGX_DEVICE static bool is_plain(const SymmetricMeta& meta) {
    return !meta.special && !meta.nonfinite && meta.clip == kInfBits;
  }
  CGX_DEVICE static uint32_t plain_code_of(float x, const SymmetricMeta& meta, uint32_t dither) {
    SymmetricMeta plain = meta;
    plain.prescale = 1;
    plain.base = 0;
    plain.zero_point = Base::kLevels;
    return static_cast<uint32_t>(Base::wanted_code(x, plain, dither));
  }
  template <class Count>
  CGX_SHARED static uint32_t code_of(float x, const SymmetricMeta& meta, uint32_t dither,
                                     Count& saturated) {
    return Base::code_of(Base::clipped(x, meta), meta, dither, saturated);
  }
};

template <uint32_t bits>
struct SymmetricKernel : ClippedSymmetric<bits, Rounding::kNearest> {
  using Dithered = ClippedSymmetric<bits, Rounding::kStochastic>;

  CGX_SHARED static Norm norm_of(const CodecSpec& spec) {
    return spec.flags & CodecSpec::kL2Norm ? Norm::kL2
           : spec.flags & CodecSpec::kClip ? Norm::kClipped
                                           : Norm::kMax;
  }
  template <class Team>
  static CGX_DEVICE SymmetricExtent team_extent(Team& team, const float* x, uint32_t n,
                                                const CodecSpec& spec) {
    SymmetricExtent extent{.max_abs = bucket_max_abs_bits(team, x, n)};
    if (norm_of(spec) == Norm::kMax) return extent;
    const float scale = square_scale(extent.max_abs);
    extent.squares = team_sum(team, n, [&](uint32_t e) { return square_of(x[e], scale); });
    return extent;
  }
  CGX_SHARED static SymmetricMeta fit(const SymmetricExtent& extent, uint32_t n, uint32_t limit,
                                      const CodecSpec& spec) {
    return fit_symmetric(extent, n, ClippedSymmetric<bits, Rounding::kNearest>::kLevels,
                         norm_of(spec), limit);
  }
};
template <uint32_t bits, Rounding rounding, Norm norm>
struct KernelOf<Symmetric<bits, rounding, norm>> {
  using Type = SymmetricKernel<bits>;
};

}  // namespace
}  // namespace cgx::kernels
