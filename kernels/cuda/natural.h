// Powers of two as kernels have them: one kernel for both ways of rounding.
#pragma once

#include "kernels/codecs/natural.h"
#include "kernels/cuda/formats.h"

namespace cgx::kernels {
namespace {

// Codes are plain where no value is above the top level.
template <uint32_t bits, Rounding rounding>
struct PlainNatural : Natural<bits, rounding> {
  CGX_DEVICE static bool is_plain(const NaturalMeta& meta) {
    return !meta.special && !meta.nonfinite;
  }
  CGX_DEVICE static uint32_t plain_code_of(float x, const NaturalMeta& meta, uint32_t dither) {
    const float y = float_of(abs_bits(x)) * meta.inverse();
    const int32_t level = Natural<bits, rounding>::level_of(y, dither);
    return bits_of(x) >> 31 << (bits - 1) | static_cast<uint32_t>(level);
  }
  // As Natural's, without branches: selections cost a lane less.
  CGX_DEVICE static float value_of(uint32_t code, const NaturalMeta& meta) {
    constexpr uint32_t kLevels = Natural<bits, rounding>::kLevels;
    const uint32_t m = code & kLevels;
    const uint32_t level = code >> (bits - 1) << 31 | (meta.exponent - kLevels + m) << 23;
    const uint32_t finite = (m == 0) | (meta.exponent == 0) ? 0 : level;
    return float_of(meta.nonfinite ? kNanBits : finite);
  }
};

template <uint32_t bits>
struct NaturalKernel : PlainNatural<bits, Rounding::kNearest> {
  using Dithered = PlainNatural<bits, Rounding::kStochastic>;
};
template <uint32_t bits, Rounding rounding>
struct KernelOf<Natural<bits, rounding>> {
  using Type = NaturalKernel<bits>;
};

}  // namespace
}  // namespace cgx::kernels
