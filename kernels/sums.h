// Sums over a bucket, in the one order that every lane follows: value e goes into partial e mod 64,
// in order from +0.0; then the partials fold in halves. See ARITHMETIC.md "Sums".
#pragma once

#include <cstdint>

#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

constexpr uint32_t kPartials = 64;

// From here on (magnitude bits) values are scaled down before they are summed or squared, so that
// no sum of a bucket overflows.
constexpr uint32_t kHugeToSum = 0x76800000u;     // 2^110
constexpr uint32_t kHugeToSquare = 0x5b800000u;  // 2^56
constexpr float kSumScale = 0x1p-13f;
constexpr float kSquareScale = 0x1p-70f;

CGX_SHARED inline float fold_partials(float* p) {
  for (uint32_t half = kPartials / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) p[i] += p[i + half];
  }
  return p[0];
}

// The sum of f(x[e]).
template <class F>
CGX_SHARED inline float sum_of(const float* x, uint32_t n, F f) {
  float partials[kPartials] = {};
  for (uint32_t e = 0; e < n; ++e) partials[e % kPartials] += f(x[e]);
  return fold_partials(partials);
}

CGX_SHARED inline uint32_t max_abs_bits(const float* x, uint32_t n) {
  uint32_t max_abs = 0;
  for (uint32_t e = 0; e < n; ++e) max_abs = abs_bits(x[e]) > max_abs ? abs_bits(x[e]) : max_abs;
  return max_abs;
}

// What squares of a bucket with this largest magnitude are taken of, and how to undo it.
CGX_SHARED inline float square_scale(uint32_t max_abs) {
  return max_abs >= kHugeToSquare ? kSquareScale : 1.0f;
}
CGX_SHARED inline double unscaled_square(float sum, float scale) {
  return scale == 1.0f ? sum : static_cast<double>(sum) * 0x1p140;
}
CGX_SHARED inline float square_of(float x, float scale) {
  return (x * scale) * (x * scale);
}
CGX_SHARED inline double squared_norm(const float* x, uint32_t n, float scale) {
  return unscaled_square(sum_of(x, n, [scale](float v) { return square_of(v, scale); }), scale);
}

}  // namespace
}  // namespace cgx::kernels
