// The metadata of max-min quantization: what a bucket's range makes of unit, offset and zero point.
//
//   metadata of a bucket, 8 bytes: float unit, float lo         value = lo + code * unit
//                                  float -unit, float z         value = (code - z) * unit
//                                  (zero-exact) 0, NaN                       every value is NaN
// Zero-exact is used where the bucket contains a zero (not at 1 bit). Codes lie as planes.h says.
// Formulas and their reasons: ARITHMETIC.md "Max-min".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// What one pass over a bucket finds.
struct MaxMinExtent {
  float lo, hi;
  uint32_t max_abs;  // as bits, so that NaN and infinity are the largest
  bool zero;         // contains +0 or -0

  CGX_SHARED void add(float x) {
    lo = x < lo ? x : lo;
    hi = x > hi ? x : hi;
    max_abs = abs_bits(x) > max_abs ? abs_bits(x) : max_abs;
    zero |= abs_bits(x) == 0;
  }
  CGX_SHARED void merge(const MaxMinExtent& other) {
    lo = other.lo < lo ? other.lo : lo;
    hi = other.hi > hi ? other.hi : hi;
    max_abs = other.max_abs > max_abs ? other.max_abs : max_abs;
    zero |= other.zero;
  }
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

  CGX_SHARED float value(int32_t code) const {
    return lo + static_cast<float>(code - zero_point) * unit;
  }
};

constexpr float kNearlyConstant = 0x1p-100f;
constexpr uint32_t kHugeBits = 0x7e000000u;  // 2^125
constexpr float kHugeScale = 0x1p-8f;

CGX_SHARED inline MaxMinExtent empty_maxmin_extent() {
  return {float_of(kInfBits), -float_of(kInfBits), 0, false};
}
CGX_SHARED inline MaxMinExtent maxmin_extent_of(const float* x, uint32_t n) {
  MaxMinExtent extent = empty_maxmin_extent();
  for (uint32_t i = 0; i < n; ++i) extent.add(x[i]);
  return extent;
}

// Codes end at the last one whose value is finite for a receiver that overflows at `limit`.
CGX_SHARED inline void narrow_codes(MaxMinMeta& meta, uint32_t limit) {
  while (abs_bits(meta.value(meta.code_max)) >= limit && meta.code_max > meta.code_min) {
    --meta.code_max;
    meta.special = true;
  }
  while (abs_bits(meta.value(meta.code_min)) >= limit && meta.code_min < meta.code_max) {
    ++meta.code_min;
    meta.special = true;
  }
}

CGX_SHARED inline MaxMinMeta fit_maxmin(const MaxMinExtent& extent, int32_t code_max,
                                        uint32_t limit) {
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

CGX_SHARED inline void put_maxmin(const MaxMinMeta& meta, uint8_t* bytes) {
  const float words[2] = {meta.zero_exact ? -meta.unit : meta.unit,
                          meta.zero_exact ? static_cast<float>(meta.zero_point) : meta.lo};
  std::memcpy(bytes, words, sizeof(words));
}

// False for metadata that no encoder writes.
CGX_SHARED inline bool get_maxmin(const uint8_t* bytes, int32_t code_max, MaxMinMeta& meta) {
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

}  // namespace
}  // namespace cgx::kernels
