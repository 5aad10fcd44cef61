// Max-min quantization: every bucket sends its range and one code of 1 to 8 bits per value.
//
//   metadata of a bucket, 8 bytes: float unit, float lo         value = lo + code * unit
//                                  float -unit, float z         value = (code - z) * unit
//                                  (zero-exact) 0, NaN                       every value is NaN
// Zero-exact is used where the bucket contains a zero (not at 1 bit). Codes lie as planes.h says.
// Formulas and their reasons: ARITHMETIC.md "Max-min".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/draw.h"
#include "kernels/floats.h"
#include "kernels/planes.h"

namespace cgx::kernels {
namespace {

// What one pass over a bucket finds.
struct Extent {
  float lo, hi;
  uint32_t max_abs;  // as bits, so that NaN and infinity are the largest
  bool zero;         // contains +0 or -0
};

struct MaxMinMeta {
  float unit = 0, lo = 0;  // value = lo + (code - zero_point) * unit
  int32_t zero_point = 0;
  bool zero_exact = false;
  bool nonfinite = false;
  // Encoding only: q = (x * prescale - base) * inverse.
  float inverse = 0, base = 0;
  float prescale = 1;
  int32_t code_min = 0, code_max = 0;  // narrower than 0..m where an end would not decode finite
  bool special = false;                // prescale != 1 or a narrowed code range: the scalar lane's

  float value(int32_t code) const { return lo + static_cast<float>(code - zero_point) * unit; }
};

constexpr float kNearlyConstant = 0x1p-100f;
constexpr uint32_t kHugeBits = 0x7e000000u;  // 2^125
constexpr float kHugeScale = 0x1p-8f;

inline Extent extent_of(const float* x, uint32_t n) {
  Extent extent{x[0], x[0], 0, false};
  for (uint32_t i = 0; i < n; ++i) {
    extent.lo = x[i] < extent.lo ? x[i] : extent.lo;
    extent.hi = x[i] > extent.hi ? x[i] : extent.hi;
    extent.max_abs = abs_bits(x[i]) > extent.max_abs ? abs_bits(x[i]) : extent.max_abs;
    extent.zero |= abs_bits(x[i]) == 0;
  }
  return extent;
}

// Codes end at the last one whose value is finite for a receiver that overflows at `limit`.
inline void narrow_codes(MaxMinMeta& meta, uint32_t limit) {
  while (abs_bits(meta.value(meta.code_max)) >= limit && meta.code_max > meta.code_min) {
    --meta.code_max;
    meta.special = true;
  }
  while (abs_bits(meta.value(meta.code_min)) >= limit && meta.code_min < meta.code_max) {
    ++meta.code_min;
    meta.special = true;
  }
}

inline MaxMinMeta fit_maxmin(const Extent& extent, int32_t code_max, uint32_t limit) {
  MaxMinMeta meta;
  if (extent.max_abs >= kInfBits) {
    meta.nonfinite = true;
    meta.lo = float_of(kNanBits);
    return meta;
  }
  const bool huge = extent.max_abs >= kHugeBits;
  if (huge) meta.prescale = kHugeScale;
  const float lo = extent.lo * meta.prescale + 0.0f;
  const float hi = extent.hi * meta.prescale + 0.0f;
  const float range = hi - lo;
  if (range < kNearlyConstant) {
    meta.prescale = 1;
    meta.lo = extent.zero ? 0.0f : extent.lo + 0.0f;
    return meta;
  }
  meta.code_max = code_max;
  meta.special = huge;
  meta.zero_exact = extent.zero && code_max > 1;
  const bool inside = meta.zero_exact && lo < 0 && hi > 0;
  const float steps = static_cast<float>(inside ? code_max - 1 : code_max);
  meta.unit = range / steps;
  meta.inverse = steps / range;
  if (meta.zero_exact) {
    // ceil of a quotient in [0, m]; truncation and one comparison do it.
    const float quotient = inside ? -lo / meta.unit : 0.0f;
    int32_t z = static_cast<int32_t>(quotient);
    if (static_cast<float>(z) < quotient) ++z;
    if (z > code_max) z = code_max;
    meta.zero_point = inside || lo == 0 ? z : code_max;
  } else {
    meta.base = lo;
    meta.lo = huge ? lo / kHugeScale : lo;
  }
  if (huge) {
    const float unit = meta.unit / kHugeScale;
    meta.unit = abs_bits(unit) >= kInfBits ? kFloatMax : unit;
  }
  if (huge || limit != kInfBits) narrow_codes(meta, limit);
  return meta;
}

inline void put_maxmin(const MaxMinMeta& meta, uint8_t* bytes) {
  const float words[2] = {meta.zero_exact ? -meta.unit : meta.unit,
                          meta.zero_exact ? static_cast<float>(meta.zero_point) : meta.lo};
  std::memcpy(bytes, words, sizeof(words));
}

// False for metadata that no encoder writes.
inline bool get_maxmin(const uint8_t* bytes, int32_t code_max, MaxMinMeta& meta) {
  float words[2];
  std::memcpy(words, bytes, sizeof(words));
  const uint32_t unit = abs_bits(words[0]), second = bits_of(words[1]);
  meta = MaxMinMeta();
  meta.unit = float_of(unit);
  meta.code_max = code_max;
  if (unit >= kInfBits) return false;
  if (bits_of(words[0]) & kSignBit) {
    if (unit == 0 || !(words[1] >= 0 && words[1] <= static_cast<float>(code_max))) return false;
    meta.zero_exact = true;
    meta.zero_point = static_cast<int32_t>(words[1]);
    return static_cast<float>(meta.zero_point) == words[1];
  }
  meta.lo = words[1];
  meta.nonfinite = second == kNanBits && unit == 0;
  return meta.nonfinite || (second & kAbsMask) < kInfBits;
}

enum class Rounding : uint8_t { kNearest, kStochastic };

// Fraction bits of the dither: 8 up to 4-bit codes (a draw serves four values), else 16 (two).
constexpr uint32_t dither_bits(uint32_t bits) {
  return bits <= 4 ? 8 : 16;
}

inline uint32_t dither(uint64_t key, uint32_t bits, uint32_t e) {
  const uint32_t block = e / kBlock, j = e % kBlock / 16, l = e % 16;
  if (bits <= 4) return draw(key, 16 * block + l) >> 8 * j & 0xff;
  return draw(key, 32 * block + 16 * (j / 2) + l) >> 16 * (j % 2) & 0xffff;
}

template <uint32_t bits, Rounding rounding>
struct MaxMin {
  using Meta = MaxMinMeta;
  static constexpr uint32_t kMetaBytes = 8;
  static constexpr int32_t kCodeMax = (1 << bits) - 1;
  static constexpr uint32_t kBlockBytes = 8 * bits;
  static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }

  static Meta fit(const float* x, uint32_t n, uint32_t limit) {
    return fit_maxmin(extent_of(x, n), kCodeMax, limit);
  }
  static void put_meta(const Meta& meta, uint8_t* bytes) { put_maxmin(meta, bytes); }
  static bool get_meta(const uint8_t* bytes, Meta& meta) {
    return get_maxmin(bytes, kCodeMax, meta);
  }

  // The code of value `e` of the bucket before the range of codes is narrowed.
  static int32_t code_of(float x, const Meta& meta, uint64_t key, uint32_t e) {
    const float offset = x * meta.prescale - meta.base;
    if constexpr (rounding == Rounding::kNearest) {
      const int32_t code = static_cast<int32_t>(__builtin_lrintf(offset * meta.inverse));
      return clamp(code + meta.zero_point, 0, kCodeMax);
    } else {
      constexpr int32_t one = 1 << dither_bits(bits);
      const float scaled = offset * (meta.inverse * static_cast<float>(one));
      const int32_t fixed = static_cast<int32_t>(__builtin_lrintf(scaled)) + meta.zero_point * one;
      const uint32_t d = dither(key, bits, e);
      return (clamp(fixed, 0, kCodeMax * one) + static_cast<int32_t>(d)) / one;
    }
  }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t key, uint8_t* codes,
                   RangeStats& stats) {
    std::memset(codes, 0, code_bytes(n));
    if (meta.nonfinite) return;
    for (uint32_t e = 0; e < n; ++e) {
      const int32_t wanted = code_of(x[e], meta, key, e);
      const int32_t sent = clamp(wanted, meta.code_min, meta.code_max);
      stats.saturated += sent != wanted;
      put_code(codes + e / kBlock * kBlockBytes, bits, e % kBlock, static_cast<uint32_t>(sent));
    }
  }

  static void value(const uint8_t* codes, uint32_t n, const Meta& meta, float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      const uint32_t code = get_code(codes + e / kBlock * kBlockBytes, bits, e % kBlock);
      x[e] = meta.value(static_cast<int32_t>(code));
    }
  }

  static bool nonfinite(const Meta& meta, const float*, uint32_t, uint32_t) {
    return meta.nonfinite;
  }

 private:
  static int32_t clamp(int32_t x, int32_t low, int32_t high) {
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
