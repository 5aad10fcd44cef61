// Eight-bit floats under a shared power of two for every 32 values (MX style).
//
//   a block of 64 values, 66 bytes: two scale bytes (of values 0-31 and 32-63), then a byte per
//   value scale byte s: 2^(s - 127); 255: every value is NaN value byte: sign, then 4 exponent and
//   3 mantissa bits (e4m3, bias 7) or 5 and 2 (e5m2, bias 15), with denormals, without infinities:
//   all codes are numbers.
// The scale is the smallest with which the largest magnitude rounds to at most 1.75 times the
// format's largest power of two. Formulas: ARITHMETIC.md "Eight-bit floats".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/codecs/max_abs.h"
#include "kernels/floats.h"
#include "kernels/lanes/block.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

constexpr uint32_t kScaled = 32;  // values under one scale
constexpr uint8_t kNanScale = 255;

struct Fp8Meta {
  bool nonfinite = false;
  uint32_t limit = kInfBits;  // no finite value may decode to this magnitude or beyond
  bool special = false;       // one might, rounded up: the scalar lane's
  // The scale bytes of the bucket.
  const uint8_t* scales = nullptr;
  uint8_t* scales_out = nullptr;
};

template <uint32_t mantissa_bits>
struct Fp8Format {
  static constexpr uint32_t kShift = 23 - mantissa_bits;
  static constexpr uint32_t kBias = mantissa_bits == 3 ? 7 : 15;
  static constexpr uint32_t kTopExponent = mantissa_bits == 3 ? 8 : 15;  // unbiased
  static constexpr uint32_t kRebias = (127 - kBias) << mantissa_bits;
  // Added to the bits of a magnitude: rounds (ties away from zero) and takes the bias along.
  static constexpr int32_t kRound = (1 << (kShift - 1)) - static_cast<int32_t>(kRebias << kShift);

  // The scale byte for 32 values whose largest magnitude has these bits, finite.
  CGX_SHARED static uint32_t scale_of(uint32_t max_abs) {
    const uint32_t exponent = (max_abs + 0x1fffffu) >> 23;  // one more above 1.75
    return exponent > kTopExponent ? exponent - kTopExponent : 0;
  }
  // 2^(127 - s), and 2^(s - 127) as bits.
  CGX_SHARED static float inverse_of(uint32_t scale) { return float_of((254 - scale) << 23); }
  CGX_SHARED static uint32_t scale_bits(uint32_t scale) {
    return scale == kNanScale ? kNanBits : scale == 0 ? 0x00400000u : scale << 23;
  }

  // Nearest; magnitude bits of y, already scaled.
  CGX_SHARED static uint32_t round(uint32_t y) {
    const int32_t rounded = static_cast<int32_t>(y) + kRound;
    return rounded < 0 ? 0 : static_cast<uint32_t>(rounded) >> kShift;
  }
  CGX_SHARED static float widen(uint32_t code) {
    return code == 0 ? 0.0f : float_of((code + kRebias) << kShift);
  }
};

template <uint32_t mantissa_bits>
struct Fp8 : MaxAbsExtent {
  using Format = Fp8Format<mantissa_bits>;
  using Meta = Fp8Meta;
  static constexpr uint32_t kMetaBytes = 0, kBlockMetaBytes = 2, kBlockBytes = 64;
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }

  CGX_SHARED static Meta fit(Extent max_abs, uint32_t, uint32_t limit) {
    return {.nonfinite = max_abs >= limit,
            .limit = limit,
            .special = max_abs < limit && max_abs + 0x100000u >= limit};
  }
  CGX_SHARED static void put_meta(Meta& meta, uint8_t* bytes) {
    meta.scales = meta.scales_out = bytes;
  }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, Meta& meta) {
    meta = Meta();
    meta.scales = bytes;
    return true;
  }

  // The scale byte of values whose largest magnitude has these bits.
  CGX_SHARED static uint32_t scale_of(uint32_t max_abs, const Meta& meta) {
    return meta.nonfinite ? kNanScale : Format::scale_of(max_abs);
  }
  template <class Count>
  CGX_SHARED static uint8_t code_of(float x, const Meta& meta, uint32_t scale, Count& saturated) {
    const float y = float_of(abs_bits(x)) * Format::inverse_of(scale);
    uint32_t code = Format::round(bits_of(y));
    while (abs_bits(value_of(code, scale)) >= meta.limit) {
      --code;
      ++saturated;
    }
    return static_cast<uint8_t>(code | bits_of(x) >> 31 << 7);
  }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t, uint8_t* codes,
                   RangeStats& stats) {
    std::memset(codes, 0, code_bytes(n));
    std::memset(meta.scales_out, 0, kBlockMetaBytes * blocks_of(n));
    for (uint32_t first = 0; first < n; first += kScaled) {
      const uint32_t count = n - first < kScaled ? n - first : kScaled;
      const uint32_t scale = scale_of(max_abs_bits(x + first, count), meta);
      meta.scales_out[first / kScaled] = static_cast<uint8_t>(scale);
      if (meta.nonfinite) continue;
      for (uint32_t e = first; e < first + count; ++e) {
        codes[place_of(e)] = code_of(x[e], meta, scale, stats.saturated);
      }
    }
  }

  // Where the byte of value e lies.
  CGX_SHARED static constexpr uint32_t place_of(uint32_t e) {
    return e / kBlock * kBlock + 4 * (e % 16) + e % kBlock / 16;
  }

  CGX_SHARED static float value_of(uint32_t code, uint32_t scale) {
    const float number = float_of(bits_of(Format::widen(code & 0x7f)) | code >> 7 << 31);
    return canonical_nan(number * float_of(Format::scale_bits(scale)));
  }
  static void value(const uint8_t* codes, uint32_t n, const Meta& meta, float* x) {
    for (uint32_t e = 0; e < n; ++e) x[e] = value_of(codes[place_of(e)], meta.scales[e / kScaled]);
  }
  CGX_SHARED static bool nonfinite(const Meta&, Extent decoded, uint32_t limit) {
    return decoded >= limit;
  }

  using Decoding = Fp8;
  static constexpr bool kKeepsNan = false, kScansValues = true;

  template <class V>
  using Scan = MaxAbsScan<V>;

  template <class V>
  class Coder {
   public:
    CGX_INLINE Coder(const Meta& meta, uint64_t) : scales_(meta.scales_out) {}
    // The scales of all blocks first: finding one takes long, and no other waits for it.
    CGX_INLINE void prepare(const float* x, uint32_t n) {
      typename V::Floats* inverse = inverse_;
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, ++inverse) {
        const auto magnitude = [&](uint32_t at) {
          return V::bits(V::load(x + e + at)) & V::splat(kAbsMask);
        };
        const auto highest = V::highest_of_each(V::max_signed(magnitude(0), magnitude(16)),
                                                V::max_signed(magnitude(32), magnitude(48)));
        const auto exponent = V::max_signed((highest + V::splat(0x1fffff)) & V::splat(kInfBits),
                                            V::splat(Format::kTopExponent << 23));
        *inverse = V::as_floats(V::splat((254 + Format::kTopExponent) << 23) - exponent);
      }
      next_ = inverse_;
    }
    CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
      float inverse[16];
      std::memcpy(inverse, next_++, sizeof(inverse));
      const auto first = V::splat(inverse[0]), second = V::splat(inverse[15]);
      const uint32_t scales = scale_byte(inverse[0]) | scale_byte(inverse[15]) << 8;
      std::memcpy(scales_, &scales, 2);
      scales_ += 2;
      // A value's byte on top of its lane, above what rounding cuts off; then four to a word.
      Codes<V> byte;
      for_each_vector([&](auto i) {
        const auto magnitude = V::as_floats(V::bits(x.v[i.j]) & V::splat(kAbsMask));
        const auto y = magnitude * (i.j < 2 ? first : second);
        const auto rounded = V::max_signed(V::bits(y) + V::splat(Format::kRound), V::splat(0));
        const auto code = V::template left<24 - Format::kShift>(rounded);
        byte.v[i.j] = V::select_bits(V::splat(kSignBit), V::bits(x.v[i.j]), code);
      });
      const auto top = V::splat(0xff000000u), top_two = V::splat(0xffff0000u);
      const auto low = V::select_bits(top, byte.v[1], V::template right<8>(byte.v[0]));
      const auto high = V::select_bits(top, byte.v[3], V::template right<8>(byte.v[2]));
      const auto words = V::select_bits(top_two, high, V::template right<16>(low));
      V::store_ints(block, words);
    }
    CGX_INLINE void finish(RangeStats&) const {}

   private:
    static CGX_INLINE uint32_t scale_byte(float inverse) {
      return 254 - (bits_of(inverse) >> 23);
    }
    typename V::Floats inverse_[kBucketMax / kBlock];
    const typename V::Floats* next_ = inverse_;
    uint8_t* scales_;
  };

  // Blocks are asked for in order, each once.
  template <class V>
  class Valuer {
   public:
    explicit CGX_INLINE Valuer(const Meta& meta) : scales_(meta.scales) {}
    CGX_INLINE Block<V> get(const uint8_t* block) const {
      const auto first = V::splat(float_of(Format::scale_bits(*scales_++)));
      const auto second = V::splat(float_of(Format::scale_bits(*scales_++)));
      const auto words = V::load_ints(block);
      return {{value<0>(words, first), value<1>(words, first), value<2>(words, second),
               value<3>(words, second)}};
    }

   private:
    template <int j>
    static CGX_INLINE typename V::Floats value(typename V::Ints words, typename V::Floats scale) {
      const auto code = V::template right<8 * j>(words) & V::splat(0x7f);
      const auto sign = V::template left<24 - 8 * j>(words) & V::splat(kSignBit);
      const auto widened = V::template left<Format::kShift>(code + V::splat(Format::kRebias));
      const auto magnitude = V::select(V::less(V::splat(0), code), widened, V::splat(0));
      return V::canonical_nan(V::as_floats(magnitude | sign) * scale);
    }
    mutable const uint8_t* scales_;
  };
};

struct Fp8Family {
  static uint64_t meta_bytes() { return 0; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return (Fp8<3>::kBlockBytes + Fp8<3>::kBlockMetaBytes) * blocks_of(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.bits == 4 ? Skeleton<Fp8<3>>::kOps : Skeleton<Fp8<2>>::kOps;
  }
};

}  // namespace
}  // namespace cgx::kernels
