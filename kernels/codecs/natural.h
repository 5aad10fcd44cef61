// Powers of two: 2 to 4 bits hold a sign and which of the L = 2^(bits - 1) - 1 largest powers of
// two of the bucket, or zero.
//
//   metadata of a bucket, 4 bytes: float top, the largest power; 0: all zero; NaN: all NaN
//   code = sign << (bits - 1) | m        value = +-top * 2^(m - L) for m > 0, 0 for m = 0
// Formulas: ARITHMETIC.md "Natural levels".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/codecs/dither.h"
#include "kernels/codecs/max_abs.h"
#include "kernels/codecs/planes_vector.h"
#include "kernels/codecs/table_valuer.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

struct NaturalMeta {
  uint32_t exponent = 0;  // of top, biased by 127; 0: everything is zero
  bool nonfinite = false;
  bool special = false;  // values above top: the scalar lane's

  CGX_SHARED float inverse() const {  // 1 / top, exactly; a denormal for 2^127
    return exponent == 0 ? 0.0f : exponent == 254 ? 0x1p-127f : float_of((254 - exponent) << 23);
  }
};

constexpr uint32_t kNaturalExponentMin = 27;  // 2^-100

CGX_SHARED inline NaturalMeta fit_natural(uint32_t max_abs, uint32_t limit) {
  NaturalMeta meta;
  if (max_abs >= kInfBits) {
    meta.nonfinite = true;
    return meta;
  }
  uint32_t exponent = (max_abs + 0x7fffffu) >> 23;  // rounds up
  if (exponent < kNaturalExponentMin) return meta;
  while (exponent << 23 >= limit) --exponent;
  meta.exponent = exponent;
  meta.special = max_abs > exponent << 23;
  return meta;
}

template <uint32_t bits>
struct NaturalLevels {
  static constexpr int32_t kLevels = (1 << (bits - 1)) - 1;
  // Of values relative to top: the smallest level, and half of it.
  static constexpr uint32_t kLowest = static_cast<uint32_t>(127 + 1 - kLevels) << 23;
  static constexpr uint32_t kHalfLowest = static_cast<uint32_t>(127 - kLevels) << 23;
  static constexpr float kPerLowest = 1 << (kLevels - 1);
};

template <uint32_t bits, Rounding rounding>
struct Natural : NaturalLevels<bits>, MaxAbsExtent {
  using Levels = NaturalLevels<bits>;
  using Meta = NaturalMeta;
  static constexpr uint32_t kMetaBytes = 4, kBits = bits;
  static constexpr uint32_t kBlockBytes = 8 * bits;
  static constexpr bool kDithers = rounding == Rounding::kStochastic;
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }

  CGX_SHARED static Meta fit(Extent max_abs, uint32_t, uint32_t limit) {
    Meta meta = fit_natural(max_abs, limit);
    meta.nonfinite |= max_abs >= limit;
    return meta;
  }
  CGX_SHARED static void put_meta(const Meta& meta, uint8_t* bytes) {
    const uint32_t word = meta.nonfinite ? kNanBits : meta.exponent << 23;
    std::memcpy(bytes, &word, sizeof(word));
  }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, Meta& meta) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    meta = Meta();
    meta.nonfinite = word == kNanBits;
    if (meta.nonfinite) return true;
    meta.exponent = word >> 23;
    return word == 0 || (meta.exponent << 23 == word && meta.exponent >= kNaturalExponentMin &&
                         meta.exponent < 255);
  }

  // Which level, before it is limited to the top one. y is relative to top, not negative.
  CGX_SHARED static int32_t level_of(float y, uint32_t d) {
    const uint32_t y_bits = bits_of(y);
    const auto whole = [](uint32_t raised) {
      return static_cast<int32_t>(raised >> 23) - 127 + Levels::kLevels;
    };
    if constexpr (rounding == Rounding::kNearest) {
      const int32_t m = whole(y_bits + 0x400000u);
      return m > 0 ? m : y_bits >= Levels::kHalfLowest;
    } else {
      if (y_bits >= Levels::kLowest) return whole(y_bits + (d << 15 | 1u << 14));
      const auto fixed = nearest_int(y * (Levels::kPerLowest * 256.0f));
      return (fixed + static_cast<int32_t>(d)) >> 8;
    }
  }

  template <class Count>
  CGX_SHARED static uint32_t code_of(float x, const Meta& meta, uint32_t dither, Count& saturated) {
    const int32_t wanted = level_of(float_of(abs_bits(x)) * meta.inverse(), dither);
    const int32_t m = wanted < Levels::kLevels ? wanted : Levels::kLevels;
    saturated += m != wanted;
    return bits_of(x) >> 31 << (bits - 1) | static_cast<uint32_t>(m);
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

  CGX_SHARED static float value_of(uint32_t code, const Meta& meta) {
    if (meta.nonfinite) return float_of(kNanBits);
    const uint32_t m = code & Levels::kLevels;
    if (m == 0 || meta.exponent == 0) return 0.0f;
    const uint32_t exponent = meta.exponent - Levels::kLevels + m;
    return float_of(code >> (bits - 1) << 31 | exponent << 23);
  }
  static void value(const uint8_t* codes, uint32_t n, const Meta& meta, float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      x[e] = value_of(get_code(codes + e / kBlock * kBlockBytes, bits, e % kBlock), meta);
    }
  }
  CGX_SHARED static bool nonfinite(const Meta& meta, Extent, uint32_t) { return meta.nonfinite; }

  using Decoding = Natural<bits, Rounding::kNearest>;
  static constexpr bool kKeepsNan = false, kScansValues = false;

  template <class V>
  using Scan = MaxAbsScan<V>;

  template <class V>
  class Coder {
   public:
    CGX_INLINE Coder(const Meta& meta, uint64_t key)
        : inverse_(V::splat(meta.inverse())), draws_(key) {}
    CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
      auto draw = V::splat(0);
      if constexpr (rounding == Rounding::kStochastic) draw = draws_.next();
      Codes<V> c;
      for_each_vector([&](auto i) {
        const auto d = V::template right<8 * i.j>(draw) & V::splat(0xff);
        const auto sign = V::template right<31>(V::bits(x.v[i.j]));
        c.v[i.j] = V::template left<bits - 1>(sign) | level(x.v[i.j], d);
      });
      store_codes<V, bits>(block, c);
    }
    CGX_INLINE void finish(RangeStats&) const {}

   private:
    using Ints = typename V::Ints;
    CGX_INLINE Ints level(typename V::Floats x, Ints d) const {
      const auto y = V::as_floats(V::bits(x) & V::splat(kAbsMask)) * inverse_;
      const auto y_bits = V::bits(y);
      const auto whole = [](Ints raised) {
        return V::template right<23>(raised) - V::splat(127 - Levels::kLevels);
      };
      if constexpr (rounding == Rounding::kNearest) {
        const auto low = V::less(y_bits, V::splat(Levels::kHalfLowest));
        const auto m = whole(y_bits + V::splat(0x400000));
        return V::max_signed(m, V::select(low, V::splat(0), V::splat(1)));
      } else {
        const auto low = V::less(y_bits, V::splat(Levels::kLowest));
        const auto m = whole(y_bits + (V::template left<15>(d) | V::splat(1 << 14)));
        const auto fixed = V::round(y * V::splat(Levels::kPerLowest * 256.0f));
        return V::select(low, V::template right<8>(fixed + d), m);
      }
    }

    typename V::Floats inverse_;
    Draws<V> draws_;
  };

  template <class V>
  class Valuer : public TableValuer<V, bits> {
   public:
    explicit CGX_INLINE Valuer(const Meta& meta) : TableValuer<V, bits>(table(meta)) {}

   private:
    static CGX_INLINE typename V::Floats table(const Meta& meta) {
      if (meta.nonfinite) return V::splat(float_of(kNanBits));
      if (meta.exponent == 0) return V::splat(0.0f);
      const auto code = V::iota() & V::splat((1 << bits) - 1);
      const auto m = code & V::splat(Levels::kLevels);
      const auto exponent = m + V::splat(meta.exponent - Levels::kLevels);
      const auto sign = V::template left<31>(V::template right<bits - 1>(code));
      const auto magnitude = V::template left<23>(exponent) | sign;
      return V::as_floats(V::select(V::less(V::splat(0), m), magnitude, V::splat(0)));
    }
  };
};

struct NaturalFamily {
  static uint64_t meta_bytes() { return 4; }
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
    static constexpr decltype(&Skeleton<Natural<2, rounding>>::kOps) kInstances[3] = {
        &Skeleton<Natural<2, rounding>>::kOps, &Skeleton<Natural<3, rounding>>::kOps,
        &Skeleton<Natural<4, rounding>>::kOps};
    return *kInstances[bits - 2];
  }
};

}  // namespace
}  // namespace cgx::kernels
