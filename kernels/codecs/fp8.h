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
};

template <uint32_t mantissa_bits>
struct Fp8Format {
  static constexpr uint32_t kShift = 23 - mantissa_bits;
  static constexpr uint32_t kBias = mantissa_bits == 3 ? 7 : 15;
  static constexpr uint32_t kTopExponent = mantissa_bits == 3 ? 8 : 15;  // unbiased
  // As bits of fp32: the smallest normal number, and a number whose last place is the smallest
  // denormal one.
  static constexpr uint32_t kNormal = (127 + 1 - kBias) << 23;
  static constexpr uint32_t kMagic = (127 + 1 - kBias + kShift) << 23;
  static constexpr uint32_t kRebias = (127 - kBias) << mantissa_bits;
  static constexpr float kDenormal = mantissa_bits == 3 ? 0x1p-9f : 0x1p-16f;

  // The scale byte for 32 values whose largest magnitude has these bits, finite.
  static uint32_t scale_of(uint32_t max_abs) {
    const uint32_t exponent = (max_abs + 0x1fffffu) >> 23;  // one more above 1.75
    return exponent > kTopExponent ? exponent - kTopExponent : 0;
  }
  // 2^(127 - s), and 2^(s - 127) as bits.
  static float inverse_of(uint32_t scale) { return float_of((254 - scale) << 23); }
  static uint32_t scale_bits(uint32_t scale) {
    return scale == kNanScale ? kNanBits : scale == 0 ? 0x00400000u : scale << 23;
  }

  // Nearest even; magnitude bits of y, already scaled.
  static uint32_t round(uint32_t y) {
    if (y < kNormal) return bits_of(float_of(y) + float_of(kMagic)) - kMagic;
    const uint32_t half = (1u << (kShift - 1)) - 1;
    return ((y + half + (y >> kShift & 1)) >> kShift) - kRebias;
  }
  static float widen(uint32_t code) {
    if (code < 1u << mantissa_bits) return static_cast<float>(code) * kDenormal;
    return float_of((code + kRebias) << kShift);
  }

  template <class V>
  static CGX_INLINE typename V::Ints round(typename V::Ints y) {
    const auto low = V::bits(V::as_floats(y) + V::splat(float_of(kMagic))) - V::splat(kMagic);
    const auto odd = V::template right<kShift>(y) & V::splat(1);
    const auto half = V::splat((1 << (kShift - 1)) - 1);
    const auto high = V::template right<kShift>(y + half + odd) - V::splat(kRebias);
    return V::select(V::less(y, V::splat(kNormal)), low, high);
  }
  template <class V>
  static CGX_INLINE typename V::Floats widen(typename V::Ints code) {
    const auto low = V::bits(V::to_floats(code) * V::splat(kDenormal));
    const auto high = V::template left<kShift>(code + V::splat(kRebias));
    return V::as_floats(V::select(V::less(code, V::splat(1 << mantissa_bits)), low, high));
  }
};

template <uint32_t mantissa_bits>
struct Fp8 {
  using Format = Fp8Format<mantissa_bits>;
  using Meta = Fp8Meta;
  static constexpr uint32_t kMetaBytes = 0;
  static constexpr uint32_t kBlockBytes = 66, kScaleBytes = 2;
  static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }

  // The largest magnitude, as bits.
  using Extent = uint32_t;
  static Extent extent_of(const float* x, uint32_t n) { return max_abs_bits(x, n); }
  static uint32_t max_abs(Extent extent) { return extent; }
  static Meta fit(Extent max_abs, uint32_t, uint32_t limit) {
    return {max_abs >= limit, limit, max_abs < limit && max_abs + 0x100000u >= limit};
  }
  static void put_meta(const Meta&, uint8_t*) {}
  static bool get_meta(const uint8_t*, Meta&) { return true; }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t, uint8_t* codes,
                   RangeStats& stats) {
    std::memset(codes, 0, code_bytes(n));
    for (uint32_t first = 0; first < n; first += kScaled) {
      const uint32_t count = n - first < kScaled ? n - first : kScaled;
      uint8_t* block = codes + first / kBlock * kBlockBytes;
      const uint32_t half = first % kBlock / kScaled;
      const uint32_t scale =
          meta.nonfinite ? kNanScale : Format::scale_of(max_abs_bits(x + first, count));
      block[half] = static_cast<uint8_t>(scale);
      if (meta.nonfinite) continue;
      uint8_t* bytes = block + kScaleBytes + half * kScaled;
      for (uint32_t e = 0; e < count; ++e) {
        const float y = float_of(abs_bits(x[first + e])) * Format::inverse_of(scale);
        uint32_t code = Format::round(bits_of(y));
        while (abs_bits(value_of(code, scale)) >= meta.limit) {
          --code;
          ++stats.saturated;
        }
        bytes[e] = static_cast<uint8_t>(code | bits_of(x[first + e]) >> 31 << 7);
      }
    }
  }

  static float value_of(uint32_t code, uint32_t scale) {
    const float magnitude = Format::widen(code & 0x7f) * float_of(Format::scale_bits(scale));
    return canonical_nan(float_of(bits_of(magnitude) | code >> 7 << 31));
  }
  static void value(const uint8_t* codes, uint32_t n, const Meta&, float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      const uint8_t* block = codes + e / kBlock * kBlockBytes;
      x[e] = value_of(block[kScaleBytes + e % kBlock], block[e % kBlock / kScaled]);
    }
  }
  static bool nonfinite(const Meta&, Extent decoded, uint32_t limit) { return decoded >= limit; }

  using Decoding = Fp8;
  static constexpr bool kKeepsNan = false, kScansValues = true;

  template <class V>
  class Scan {
   public:
    CGX_INLINE void add(const Block<V>& x) {
      for_each_vector([&](auto i) {
        max_abs_ = V::max_signed(max_abs_, V::bits(x.v[i.j]) & V::splat(kAbsMask));
      });
    }
    CGX_INLINE Extent extent() const { return static_cast<uint32_t>(V::highest_signed(max_abs_)); }

   private:
    typename V::Ints max_abs_ = V::splat(0);
  };

  template <class V>
  class Coder {
   public:
    CGX_INLINE Coder(const Meta&, uint64_t) {}
    CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
      put_half<0>(x.v[0], x.v[1], block);
      put_half<1>(x.v[2], x.v[3], block);
    }
    CGX_INLINE void finish(RangeStats&) const {}

   private:
    using Floats = typename V::Floats;
    template <int half>
    static CGX_INLINE void put_half(Floats a, Floats b, uint8_t* block) {
      const auto mask = V::splat(kAbsMask);
      const auto a_abs = V::bits(a) & mask, b_abs = V::bits(b) & mask;
      const uint32_t scale =
          Format::scale_of(static_cast<uint32_t>(V::highest_signed(V::max_signed(a_abs, b_abs))));
      const auto inverse = V::splat(Format::inverse_of(scale));
      block[half] = static_cast<uint8_t>(scale);
      uint8_t* bytes = block + kScaleBytes + half * kScaled;
      V::store_bytes(bytes, code(a, V::as_floats(a_abs) * inverse));
      V::store_bytes(bytes + 16, code(b, V::as_floats(b_abs) * inverse));
    }
    static CGX_INLINE typename V::Ints code(Floats x, Floats y) {
      const auto sign = V::template left<7>(V::template right<31>(V::bits(x)));
      return Format::template round<V>(V::bits(y)) | sign;
    }
  };

  template <class V>
  class Valuer {
   public:
    explicit CGX_INLINE Valuer(const Meta&) {}
    CGX_INLINE Block<V> get(const uint8_t* block) const {
      const auto first = V::splat(float_of(Format::scale_bits(block[0])));
      const auto second = V::splat(float_of(Format::scale_bits(block[1])));
      const uint8_t* bytes = block + kScaleBytes;
      return {{value(bytes, first), value(bytes + 16, first), value(bytes + 32, second),
               value(bytes + 48, second)}};
    }

   private:
    static CGX_INLINE typename V::Floats value(const uint8_t* bytes, typename V::Floats scale) {
      const auto code = V::load_bytes(bytes);
      const auto magnitude = Format::template widen<V>(code & V::splat(0x7f)) * scale;
      const auto sign = V::template left<31>(V::template right<7>(code));
      return V::canonical_nan(V::as_floats(V::bits(magnitude) | sign));
    }
  };
};

struct Fp8Family {
  static uint64_t meta_bytes() { return 0; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return Fp8<3>::code_bytes(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.bits == 4 ? Skeleton<Fp8<3>>::kOps : Skeleton<Fp8<2>>::kOps;
  }
};

}  // namespace
}  // namespace cgx::kernels
