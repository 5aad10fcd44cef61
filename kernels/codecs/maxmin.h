// Max-min quantization: every bucket sends its range and one code of 1 to 8 bits per value.
//
// maxmin_fit.h holds the metadata, planes.h the bit order of the codes, maxmin_vector.h the same
// arithmetic on sixteen lanes. Formulas and their reasons: ARITHMETIC.md "Max-min".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/codecs/maxmin_fit.h"
#include "kernels/codecs/maxmin_vector.h"
#include "kernels/codecs/planes.h"

namespace cgx::kernels {
namespace {

template <uint32_t bits, Rounding rounding>
struct MaxMin {
  using Meta = MaxMinMeta;
  static constexpr uint32_t kMetaBytes = 8, kBits = bits;
  static constexpr bool kDithers = rounding == Rounding::kStochastic;
  static constexpr int32_t kCodeMax = (1 << bits) - 1;
  static constexpr uint32_t kBlockBytes = 8 * bits;
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }

  using Extent = MaxMinExtent;
  CGX_SHARED static Extent empty_extent() { return empty_maxmin_extent(); }
  CGX_SHARED static void add(Extent& extent, float x) { extent.add(x); }
  CGX_SHARED static void merge(Extent& extent, const Extent& other) { extent.merge(other); }
  static Extent extent_of(const float* x, uint32_t n) { return maxmin_extent_of(x, n); }
  CGX_SHARED static uint32_t max_abs(const Extent& extent) { return extent.max_abs; }
  CGX_SHARED static Meta fit(const Extent& extent, uint32_t, uint32_t limit) {
    return fit_maxmin(extent, kCodeMax, limit);
  }
  CGX_SHARED static void put_meta(const Meta& meta, uint8_t* bytes) { put_maxmin(meta, bytes); }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, Meta& meta) {
    return get_maxmin(bytes, kCodeMax, meta);
  }

  // The code of a value before the range of codes is narrowed.
  CGX_SHARED static int32_t wanted_code(float x, const Meta& meta, uint32_t dither) {
    const float offset = x * meta.prescale - meta.base;
    if constexpr (rounding == Rounding::kNearest) {
      const int32_t code = nearest_int(offset * meta.inverse);
      return clamp(code + meta.zero_point, 0, kCodeMax);
    } else {
      constexpr int32_t one = 1 << dither_bits(bits);
      const float scaled = offset * (meta.inverse * static_cast<float>(one));
      const int32_t fixed = nearest_int(scaled) + meta.zero_point * one;
      return (clamp(fixed, 0, kCodeMax * one) + static_cast<int32_t>(dither)) / one;
    }
  }
  template <class Count>
  CGX_SHARED static uint32_t code_of(float x, const Meta& meta, uint32_t dither, Count& saturated) {
    const int32_t wanted = wanted_code(x, meta, dither);
    const int32_t sent = clamp(wanted, meta.code_min, meta.code_max);
    saturated += sent != wanted;
    return static_cast<uint32_t>(sent);
  }
  CGX_SHARED static float value_of(uint32_t code, const Meta& meta) {
    return meta.value(static_cast<int32_t>(code));
  }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t key, uint8_t* codes,
                   RangeStats& stats) {
    std::memset(codes, 0, code_bytes(n));
    if (meta.nonfinite) return;
    for (uint32_t e = 0; e < n; ++e) {
      const uint32_t d = kDithers ? dither(key, bits, e) : 0;
      put_code(codes + e / kBlock * kBlockBytes, bits, e % kBlock,
               code_of(x[e], meta, d, stats.saturated));
    }
  }

  static void value(const uint8_t* codes, uint32_t n, const Meta& meta, float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      const uint32_t code = get_code(codes + e / kBlock * kBlockBytes, bits, e % kBlock);
      x[e] = value_of(code, meta);
    }
  }

  CGX_SHARED static bool nonfinite(const Meta& meta, const Extent&, uint32_t) {
    return meta.nonfinite;
  }

  using Decoding = MaxMin<bits, Rounding::kNearest>;  // decoding does not depend on the rounding
  static constexpr bool kKeepsNan = false, kScansValues = false;
  template <class V>
  using Scan = MaxMinScan<V>;
  template <class V>
  using Coder = MaxMinCoder<V, bits, rounding>;
  template <class V>
  using Valuer = MaxMinValuer<V, bits>;

 private:
  CGX_SHARED static int32_t clamp(int32_t x, int32_t low, int32_t high) {
    return x < low ? low : x > high ? high : x;
  }
};

// The instances of one codec row on one lane, by CodecSpec.
struct MaxMinFamily {
  static uint64_t meta_bytes() { return 8; }
  static uint64_t code_bytes(const CodecSpec& spec, uint64_t elements) {
    return uint64_t{8} * spec.bits * blocks_of(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.stochastic() ? instance<Skeleton, Rounding::kStochastic>(spec.bits)
                             : instance<Skeleton, Rounding::kNearest>(spec.bits);
  }

 private:
  template <template <class> class Skeleton, Rounding rounding>
  static const auto& instance(uint8_t bits) {
    static constexpr decltype(&Skeleton<MaxMin<1, rounding>>::kOps) kInstances[8] = {
        &Skeleton<MaxMin<1, rounding>>::kOps, &Skeleton<MaxMin<2, rounding>>::kOps,
        &Skeleton<MaxMin<3, rounding>>::kOps, &Skeleton<MaxMin<4, rounding>>::kOps,
        &Skeleton<MaxMin<5, rounding>>::kOps, &Skeleton<MaxMin<6, rounding>>::kOps,
        &Skeleton<MaxMin<7, rounding>>::kOps, &Skeleton<MaxMin<8, rounding>>::kOps};
    return *kInstances[bits - 1];
  }
};

}  // namespace
}  // namespace cgx::kernels
