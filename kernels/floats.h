// Floating-point bits: conversions and tests that give the same result on every lane.
//
// The scalar lane's primitives. Everything lives in an unnamed namespace on purpose: each lane is
// compiled with its own instruction set, and a shared inline function could be linked from the
// wrong one (see README.md, "One binary, several instruction sets").
#pragma once

#include <cstdint>

#include "proto/wire/types.h"

#define CGX_INLINE __attribute__((always_inline)) inline

// What the CUDA kernels share with the CPU lanes.
#ifdef __CUDACC__
#define CGX_SHARED __host__ __device__
#else
#define CGX_SHARED
#endif

namespace cgx::kernels {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kAbsMask = 0x7fffffffu;
constexpr uint32_t kInfBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;
constexpr uint64_t kNanBits64 = 0x7ff8000000000000u;
constexpr uint16_t kHalfNan = 0x7e00, kBrainNan = 0x7fc0;
constexpr float kFloatMax = 0x1.fffffep127f;
// The first magnitude that rounds to infinity in fp16 and bf16, as fp32 bits.
constexpr uint32_t kHalfOverflowBits = 0x477ff000u;
constexpr uint32_t kBrainOverflowBits = 0x7f7f8000u;

CGX_SHARED inline uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
CGX_SHARED inline float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
CGX_SHARED inline uint32_t abs_bits(float x) {
  return bits_of(x) & kAbsMask;
}
CGX_SHARED inline bool is_nan(float x) {
  return abs_bits(x) > kInfBits;
}
CGX_SHARED inline float canonical_nan(float x) {
  return is_nan(x) ? float_of(kNanBits) : x;
}
// Residuals saturate, so they are never infinite.
CGX_SHARED inline float saturated(float x) {
  return abs_bits(x) < kInfBits ? x : bits_of(x) >> 31 ? -kFloatMax : kFloatMax;
}
// A residual in other units; one that they cannot express is forgotten.
CGX_SHARED inline float rescaled(float residual, float scale) {
  const float kept = residual * scale;
  return abs_bits(kept) < kInfBits ? kept : 0.0f;
}
CGX_SHARED inline double canonical_nan(double x) {
  const uint64_t magnitude = __builtin_bit_cast(uint64_t, x) & ~(1ull << 63);
  return magnitude > 0x7ff0000000000000u ? __builtin_bit_cast(double, kNanBits64) : x;
}

// Nearest, ties to even; |x| < 2^31.
CGX_SHARED inline int32_t nearest_int(float x) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(x);
#else
  return static_cast<int32_t>(__builtin_lrintf(x));
#endif
}

CGX_SHARED inline float square_root(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// Magnitudes from here on (as fp32 bits) are not finite once cast to `dtype`.
CGX_SHARED inline uint32_t overflow_bits(DType dtype) {
  if (dtype == DType::kF16) return kHalfOverflowBits;
  if (dtype == DType::kBF16) return kBrainOverflowBits;
  return kInfBits;
}

// Nearest even; overflow gives infinity, every NaN becomes 7FC0.
CGX_SHARED inline uint16_t to_brain(float x) {
  if (is_nan(x)) return kBrainNan;
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
CGX_SHARED inline float from_brain(uint16_t x) {
  return float_of(static_cast<uint32_t>(x) << 16);
}

// Nearest even; overflow gives infinity, every NaN becomes 7E00.
CGX_SHARED inline uint16_t to_half(float x) {
  if (is_nan(x)) return kHalfNan;
  const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const uint32_t magnitude = abs_bits(x);
  if (magnitude >= kHalfOverflowBits) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24, fp16's smallest
    const uint32_t shifted = bits_of(float_of(magnitude) + 0.5f);
    return static_cast<uint16_t>(sign | (shifted - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

CGX_SHARED inline float from_half(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16;
  const uint32_t magnitude = x & 0x7fffu;
  if (magnitude > 0x7c00u) return float_of(kNanBits);
  if (magnitude == 0x7c00u) return float_of(sign | kInfBits);
  if (magnitude < 0x0400u)
    return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  return float_of(sign | ((magnitude << 13) + 0x38000000u));
}

// Element `i` of an array of a small float type, as fp32. NaN of fp32 keeps its bits.
CGX_SHARED inline float load_element(const void* values, DType dtype, uint64_t i) {
  if (dtype == DType::kF16) return from_half(static_cast<const uint16_t*>(values)[i]);
  if (dtype == DType::kBF16)
    return canonical_nan(from_brain(static_cast<const uint16_t*>(values)[i]));
  return static_cast<const float*>(values)[i];
}

// The last cast: plain nearest even, may give infinity.
CGX_SHARED inline void store_element(void* values, DType dtype, uint64_t i, float x) {
  if (dtype == DType::kF16) {
    static_cast<uint16_t*>(values)[i] = to_half(x);
  } else if (dtype == DType::kBF16) {
    static_cast<uint16_t*>(values)[i] = to_brain(x);
  } else {
    static_cast<float*>(values)[i] = x;
  }
}

}  // namespace
}  // namespace cgx::kernels
