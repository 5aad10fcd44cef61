// Stochastic rounding: a fixed-point fraction per value, cut from the bucket's draws.
//
// Value e = 64 * block + 16 * j + l of a bucket takes, up to 4-bit codes, byte j of draw 16 * block
// + l; above, halfword j % 2 of draw 32 * block + 16 * (j / 2) + l. No bit of a draw is used twice.
#pragma once

#include <cstdint>

#include "kernels/codecs/planes.h"
#include "kernels/draw.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

enum class Rounding : uint8_t { kNearest, kStochastic };

// Fraction bits: 8 up to 4-bit codes (a draw serves four values), else 16 (two).
constexpr uint32_t dither_bits(uint32_t bits) {
  return bits <= 4 ? 8 : 16;
}

// The dithers of values 16 * j + l of a block, j = 0 to 3.
template <uint32_t bits>
CGX_SHARED inline void four_dithers(uint64_t key, uint32_t block, uint32_t l, uint32_t* d) {
  if constexpr (bits <= 4) {
    const uint32_t all = draw(key, 16 * block + l);
    for (uint32_t j = 0; j < 4; ++j) d[j] = all >> 8 * j & 0xff;
  } else {
    const uint32_t low = draw(key, 32 * block + l), high = draw(key, 32 * block + 16 + l);
    for (uint32_t j = 0; j < 4; ++j) d[j] = (j < 2 ? low : high) >> 16 * (j % 2) & 0xffff;
  }
}

CGX_SHARED inline uint32_t dither(uint64_t key, uint32_t bits, uint32_t e) {
  const uint32_t block = e / kBlock, j = e % kBlock / 16, l = e % 16;
  if (bits <= 4) return draw(key, 16 * block + l) >> 8 * j & 0xff;
  return draw(key, 32 * block + 16 * (j / 2) + l) >> 16 * (j % 2) & 0xffff;
}

// Sixteen draws at a time: next() gives draws 16 * n .. 16 * n + 15 for n = 0, 1, ...
template <class V>
class Draws {
 public:
  using Ints = typename V::Ints;
  explicit CGX_INLINE Draws(uint64_t key)
      : counter_(V::iota() * V::splat(kGolden32) + V::splat(static_cast<uint32_t>(key))),
        late_(V::splat(static_cast<uint32_t>(key >> 32))) {}

  CGX_INLINE Ints next() {
    Ints x = counter_;
    counter_ = counter_ + V::splat(16 * kGolden32);
    x = (x ^ V::template right<16>(x)) * V::splat(kDrawMultiplier1);
    x = x ^ late_;
    x = (x ^ V::template right<15>(x)) * V::splat(kDrawMultiplier2);
    return x ^ V::template right<16>(x);
  }

 private:
  Ints counter_, late_;
};

}  // namespace
}  // namespace cgx::kernels
