// Max-min as kernels have it: one kernel for both ways of rounding, which differ in a few lines.
#pragma once

#include "kernels/codecs/maxmin.h"
#include "kernels/cuda/formats.h"

namespace cgx::kernels {
namespace {

// The smaller and the larger of two: NaN if either is.
CGX_DEVICE inline float smaller(float a, float b) {
#ifdef __CUDA_ARCH__
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return is_nan(a) || a < b ? a : b;
#endif
}
CGX_DEVICE inline float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return is_nan(a) || a > b ? a : b;
#endif
}

// What MaxMinExtent says, in three instructions a value and three words to merge. Neither +0 and -0
// nor one NaN and another make a difference to fit_maxmin.
struct MaxMinSpan {
  float lo, hi, nearest_zero;

  CGX_DEVICE void merge(const MaxMinSpan& other) {
    lo = smaller(lo, other.lo);
    hi = larger(hi, other.hi);
    nearest_zero = smaller(nearest_zero, other.nearest_zero);
  }
  CGX_DEVICE MaxMinExtent extent() const {
    const uint32_t low = abs_bits(lo), high = abs_bits(hi);
    return {lo, hi, low > high ? low : high, abs_bits(nearest_zero) == 0};
  }
};

// Codes where nothing is out of the ordinary, so that no value is saturated and x * prescale is x.
template <uint32_t bits, Rounding rounding>
struct PlainMaxMin : MaxMin<bits, rounding> {
  CGX_DEVICE static bool is_plain(const MaxMinMeta& meta) {
    return !meta.special && !meta.nonfinite;
  }
  CGX_DEVICE static uint32_t plain_code_of(float x, const MaxMinMeta& meta, uint32_t dither) {
    MaxMinMeta plain = meta;
    plain.prescale = 1;
    return static_cast<uint32_t>(MaxMin<bits, rounding>::wanted_code(x, plain, dither));
  }
};

template <uint32_t bits>
struct MaxMinKernel : PlainMaxMin<bits, Rounding::kNearest> {
  using Base = MaxMin<bits, Rounding::kNearest>;
  using Dithered = PlainMaxMin<bits, Rounding::kStochastic>;

  using Extent = MaxMinSpan;
  CGX_DEVICE static Extent empty_extent() {
    return {float_of(kInfBits), -float_of(kInfBits), float_of(kInfBits)};
  }
  CGX_DEVICE static void add(Extent& extent, float x) {
    extent.merge({x, x, float_of(abs_bits(x))});
  }
  CGX_DEVICE static void merge(Extent& extent, const Extent& other) { extent.merge(other); }
  CGX_DEVICE static MaxMinMeta fit(const Extent& extent, uint32_t n, uint32_t limit) {
    return Base::fit(extent.extent(), n, limit);
  }
  CGX_DEVICE static bool nonfinite(const MaxMinMeta& meta, const Extent&, uint32_t) {
    return meta.nonfinite;
  }
};
template <uint32_t bits, Rounding rounding>
struct KernelOf<MaxMin<bits, rounding>> {
  using Type = MaxMinKernel<bits>;
};

}  // namespace
}  // namespace cgx::kernels
