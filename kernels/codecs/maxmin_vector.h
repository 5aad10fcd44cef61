// Max-min quantization on sixteen lanes: scan, code and value of one block.
//
// Gives the bits of maxmin.h's scalar functions for every bucket whose metadata is not special. The
// clamps of the formulas are left out where ARITHMETIC.md "Where no clamp is needed" shows that
// they change nothing. If the source changes during a call, codes are arbitrary but stay in their
// block.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/codec.h"
#include "kernels/codecs/dither.h"
#include "kernels/codecs/maxmin_fit.h"
#include "kernels/codecs/planes_vector.h"
#include "kernels/codecs/table_valuer.h"
#include "kernels/lanes/block.h"

namespace cgx::kernels {
namespace {

// Three numbers tell everything: the largest of the bits as signed numbers is the largest positive
// value, the largest of them as unsigned ones the most negative value, and the least magnitude is
// the end next to zero where all values have one sign, and 0 if the bucket has a zero.
template <class V>
class MaxMinScan {
 public:
  CGX_INLINE void add(const Block<V>& x) {
    least_ = V::least_magnitude(least_, x.v[0], x.v[1], x.v[2], x.v[3]);
    for_each_vector([&](auto i) {
      const auto bits = V::bits(x.v[i.j]);
      signed_max_ = V::max_signed(signed_max_, bits);
      unsigned_max_ = V::max_unsigned(unsigned_max_, bits);
    });
  }

  CGX_INLINE MaxMinExtent extent() const {
    const int32_t signed_max = V::highest_signed(signed_max_);
    const uint32_t unsigned_max = V::highest_unsigned(unsigned_max_);
    const uint32_t least = V::lowest_unsigned(V::bits(least_));
    const uint32_t positive = signed_max < 0 ? 0 : static_cast<uint32_t>(signed_max);
    const uint32_t magnitude = unsigned_max & kAbsMask;
    MaxMinExtent extent;
    extent.hi = float_of(signed_max < 0 ? least | kSignBit : positive);
    extent.lo = float_of(unsigned_max & kSignBit ? unsigned_max : least);
    extent.max_abs = magnitude > positive ? magnitude : positive;
    extent.zero = least == 0;
    return extent;
  }

 private:
  using Ints = typename V::Ints;
  typename V::Floats least_ = V::splat(float_of(kInfBits));
  Ints signed_max_ = V::splat(INT32_MIN), unsigned_max_ = V::splat(0);
};

template <class V, uint32_t bits, Rounding rounding>
class MaxMinCoder {
 public:
  CGX_INLINE MaxMinCoder(const MaxMinMeta& meta, uint64_t key)
      : minus_base_(V::splat(-meta.base)),
        scale_(V::splat(meta.inverse * static_cast<float>(kOne))),
        zero_point_(V::splat(meta.zero_point * kOne)),
        draws_(key) {
    // In a word of several codes the zero point is added to all at once.
    if (one_word_plane(bits)) packed_zero_point_ = V::splat(meta.zero_point * kRepeat);
  }

  CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
    const Codes<V> fixed = {
        {fixed_point(x.v[0]), fixed_point(x.v[1]), fixed_point(x.v[2]), fixed_point(x.v[3])}};
    if constexpr (rounding == Rounding::kNearest) {
      put_nearest(fixed, block);
    } else if constexpr (bits <= 4) {
      put_dithered_bytes(fixed, block);
    } else {
      put_dithered_halfwords(fixed, block);
    }
  }

  CGX_INLINE void finish(RangeStats&) const {}

 private:
  using Ints = typename V::Ints;
  static constexpr int32_t kOne = rounding == Rounding::kNearest ? 1 : 1 << dither_bits(bits);
  static constexpr int32_t kCodeMax = (1 << bits) - 1;
  static constexpr int32_t kRepeat = bits == 4 ? 0x1111 : 0x55;

  CGX_INLINE Ints fixed_point(typename V::Floats x) const {
    return V::round((x + minus_base_) * scale_);
  }

  CGX_INLINE void put_nearest(const Codes<V>& q, uint8_t* block) const {
    if constexpr (one_word_plane(bits)) {
      const Ints low = q.v[0] + V::template left<bits>(q.v[1]);
      const Ints high = q.v[2] + V::template left<bits>(q.v[3]);
      const Ints words = low + V::template left<2 * bits>(high) + packed_zero_point_;
      store_words<V, bits>(block, words);
    } else {
      const Ints z = zero_point_;
      store_codes<V, bits>(block, {{q.v[0] + z, q.v[1] + z, q.v[2] + z, q.v[3] + z}});
    }
  }

  // Values 0 and 2 share one word, 1 and 3 another: 16 bits hold a code, its fraction and the
  // dither.
  CGX_INLINE void put_dithered_bytes(const Codes<V>& q, uint8_t* block) {
    const Ints draw = draws_.next(), bytes = V::splat(0x00ff00ff), codes = V::splat(0x000f000f);
    const Ints zero_points = zero_point_ + V::template left<16>(zero_point_);
    const Ints even = q.v[0] + V::template left<16>(q.v[2]) + (draw & bytes) + zero_points;
    const Ints odd =
        q.v[1] + V::template left<16>(q.v[3]) + (V::template right<8>(draw) & bytes) + zero_points;
    const Ints c02 = V::template right<8>(even) & codes, c13 = V::template right<8>(odd) & codes;
    if constexpr (one_word_plane(bits)) {
      const Ints pairs = c02 | V::template left<bits>(c13);
      store_words<V, bits>(block, pairs | V::template right<16 - 2 * bits>(pairs));
    } else {
      const Ints low = V::splat(0xffff);
      store_codes<V, bits>(
          block, {{c02 & low, c13 & low, V::template right<16>(c02), V::template right<16>(c13)}});
    }
  }

  CGX_INLINE void put_dithered_halfwords(const Codes<V>& q, uint8_t* block) {
    const Ints draw01 = draws_.next(), draw23 = draws_.next(), low = V::splat(0xffff);
    store_codes<V, bits>(
        block, {{dithered(q.v[0], draw01 & low), dithered(q.v[1], V::template right<16>(draw01)),
                 dithered(q.v[2], draw23 & low), dithered(q.v[3], V::template right<16>(draw23))}});
  }

  CGX_INLINE Ints dithered(Ints fixed, Ints dither) const {
    const Ints shifted = V::max_signed(fixed + zero_point_, V::splat(0));
    const Ints clamped = V::min_signed(shifted, V::splat(kCodeMax * kOne));
    return V::template right<16>(clamped + dither);
  }

  typename V::Floats minus_base_, scale_;
  Ints zero_point_, packed_zero_point_;
  Draws<V> draws_;
};

// The value of each lane's code.
template <class V>
CGX_INLINE typename V::Floats maxmin_values(const MaxMinMeta& meta, typename V::Ints codes) {
  return V::splat(meta.lo) + V::to_floats(codes - V::splat(meta.zero_point)) * V::splat(meta.unit);
}

template <class V, uint32_t bits>
class MaxMinTable : public TableValuer<V, bits> {
 public:
  explicit CGX_INLINE MaxMinTable(const MaxMinMeta& meta)
      : TableValuer<V, bits>(maxmin_values<V>(meta, V::iota() & V::splat((1 << bits) - 1))) {}
};

template <class V, uint32_t bits>
class MaxMinFormula {
 public:
  explicit CGX_INLINE MaxMinFormula(const MaxMinMeta& meta)
      : unit_(V::splat(meta.unit)),
        lo_(V::splat(meta.lo)),
        zero_point_(V::splat(meta.zero_point)) {}
  CGX_INLINE Block<V> get(const uint8_t* block) const {
    const Codes<V> c = load_codes<V, bits>(block);
    return {{value(c.v[0]), value(c.v[1]), value(c.v[2]), value(c.v[3])}};
  }

 private:
  CGX_INLINE typename V::Floats value(typename V::Ints code) const {
    return lo_ + V::to_floats(code - zero_point_) * unit_;
  }
  typename V::Floats unit_, lo_;
  typename V::Ints zero_point_;
};

template <class V, uint32_t bits>
using MaxMinValuer =
    std::conditional_t<(bits <= 4), MaxMinTable<V, bits <= 4 ? bits : 4>, MaxMinFormula<V, bits>>;

}  // namespace
}  // namespace cgx::kernels
