// One bit per value: which of a bucket's two numbers it is.
//
//   efsign   +-mean of magnitudes         metadata: float mean
//   signsgd  the same; machines vote      metadata: float mean
//   onebit   mean of the values without a sign bit, mean of those with one    two floats
// A mean that is NaN marks a non-finite bucket. Formulas: ARITHMETIC.md "Signs".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/floats.h"
#include "kernels/lanes/block.h"
#include "kernels/range.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

struct SignMeta {
  float positive = 0, negative = 0;  // what a clear and a set bit stand for
  bool nonfinite = false;
  bool special = false;  // sums need scaling: the scalar lane's

  CGX_SHARED float value(bool sign) const { return sign ? negative : positive; }
  CGX_SHARED float scale() const { return positive; }
};

// What they share: bits, their order, and values. Numbers says which two numbers a bucket has.
template <class Numbers>
struct Sign : Numbers {
  using Meta = SignMeta;
  using Extent = typename Numbers::Extent;
  static constexpr uint32_t kBlockBytes = 8, kBits = 1;
  static constexpr bool kDithers = false;
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return kBlockBytes * blocks_of(elements);
  }
  CGX_SHARED static uint32_t max_abs(const Extent& extent) { return extent.max_abs; }

  CGX_SHARED static Meta fit(const Extent& extent, uint32_t n, uint32_t limit) {
    Meta meta;
    meta.nonfinite = extent.max_abs >= limit;
    meta.special = extent.max_abs >= kHugeToSum;
    if (meta.nonfinite) {
      meta.positive = meta.negative = float_of(kNanBits);
    } else {
      Numbers::fit(extent, n, meta);
    }
    return meta;
  }

  template <class Count>
  CGX_SHARED static uint32_t code_of(float x, const Meta&, uint32_t, Count&) {
    return bits_of(x) >> 31;
  }
  CGX_SHARED static float value_of(uint32_t code, const Meta& meta) { return meta.value(code); }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t, uint8_t* codes,
                   RangeStats&) {
    std::memset(codes, 0, code_bytes(n));
    if (meta.nonfinite) return;
    for (uint32_t e = 0; e < n; ++e) {
      codes[e / 8] |= static_cast<uint8_t>((bits_of(x[e]) >> 31) << e % 8);
    }
  }
  static void value(const uint8_t* codes, uint32_t n, const Meta& meta, float* x) {
    for (uint32_t e = 0; e < n; ++e) x[e] = meta.value(codes[e / 8] >> e % 8 & 1);
  }
  CGX_SHARED static bool nonfinite(const Meta& meta, const Extent&, uint32_t limit) {
    return meta.nonfinite || abs_bits(meta.positive) >= limit || abs_bits(meta.negative) >= limit;
  }

  using Decoding = Sign;
  static constexpr bool kKeepsNan = false, kScansValues = false;
  template <class V>
  using Scan = typename Numbers::template Scan<V>;

  template <class V>
  class Coder {
   public:
    CGX_INLINE Coder(const Meta&, uint64_t) {}
    CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
      uint16_t words[4];
      for_each_vector([&](auto i) { words[i.j] = V::sign_bits(x.v[i.j]); });
      std::memcpy(block, words, sizeof(words));
    }
    CGX_INLINE void finish(RangeStats&) const {}
  };

  template <class V>
  class Valuer {
   public:
    explicit CGX_INLINE Valuer(const Meta& meta)
        : positive_(V::splat(bits_of(meta.positive))),
          flip_(static_cast<int32_t>(bits_of(meta.positive) ^ bits_of(meta.negative))) {}
    CGX_INLINE Block<V> get(const uint8_t* block) const {
      uint16_t words[4];
      std::memcpy(words, block, sizeof(words));
      Block<V> x;
      for_each_vector(
          [&](auto i) { x.v[i.j] = V::as_floats(positive_ ^ V::spread_bits(words[i.j], flip_)); });
      return x;
    }

   private:
    typename V::Ints positive_;
    int32_t flip_;
  };
};

// A mean never exceeds the largest magnitude, however sums were rounded.
CGX_SHARED inline float at_most(float mean, uint32_t max_abs) {
  return abs_bits(mean) <= max_abs ? mean : float_of((bits_of(mean) & kSignBit) | max_abs);
}

// sum / n of values that were scaled down by kSumScale where they are huge; never -0.
CGX_SHARED inline float mean_of(float sum, uint32_t n, uint32_t max_abs) {
  const float mean = sum / static_cast<float>(n);
  return at_most(max_abs >= kHugeToSum ? mean / kSumScale : mean, max_abs) + 0.0f;
}
CGX_SHARED inline float sum_scale(uint32_t max_abs) {
  return max_abs >= kHugeToSum ? kSumScale : 1.0f;
}

// +-mean of magnitudes.
struct MeanMagnitude {
  struct Extent {
    float sum = 0;
    uint32_t max_abs = 0, min_abs = 0;
  };
  static constexpr uint32_t kMetaBytes = 4;

  CGX_SHARED static float summand(float x, float scale) { return float_of(abs_bits(x)) * scale; }
  static Extent extent_of(const float* x, uint32_t n) {
    Extent extent{.max_abs = max_abs_bits(x, n), .min_abs = kAbsMask};
    const float scale = sum_scale(extent.max_abs);
    for (uint32_t e = 0; e < n; ++e) {
      extent.min_abs = abs_bits(x[e]) < extent.min_abs ? abs_bits(x[e]) : extent.min_abs;
    }
    extent.sum = sum_of(x, n, [scale](float v) { return summand(v, scale); });
    return extent;
  }
  CGX_SHARED static void fit(const Extent& extent, uint32_t n, SignMeta& meta) {
    const bool constant = extent.min_abs == extent.max_abs;
    meta.positive = constant ? float_of(extent.max_abs) : mean_of(extent.sum, n, extent.max_abs);
    meta.negative = 0.0f - meta.positive;
  }
  CGX_SHARED static void put_meta(const SignMeta& meta, uint8_t* bytes) {
    std::memcpy(bytes, &meta.positive, sizeof(float));
  }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, SignMeta& meta) {
    meta = SignMeta();
    std::memcpy(&meta.positive, bytes, sizeof(float));
    meta.negative = 0.0f - meta.positive;
    meta.nonfinite = bits_of(meta.positive) == kNanBits;
    if (meta.nonfinite) meta.negative = meta.positive;
    return meta.nonfinite || bits_of(meta.positive) < kInfBits;
  }

  template <class V>
  class Scan {
   public:
    CGX_INLINE void add(const Block<V>& x) {
      for_each_vector([&](auto i) {
        const auto magnitude = V::bits(x.v[i.j]) & V::splat(kAbsMask);
        max_abs_ = V::max_signed(max_abs_, magnitude);
        min_abs_ = V::min_signed(min_abs_, magnitude);
        sum_.v[i.j] = sum_.v[i.j] + V::as_floats(magnitude);
      });
    }
    CGX_INLINE Extent extent() const {
      return {fold_block(sum_), static_cast<uint32_t>(V::highest_signed(max_abs_)),
              static_cast<uint32_t>(V::lowest_signed(min_abs_))};
    }

   private:
    typename V::Ints max_abs_ = V::splat(0), min_abs_ = V::splat(kAbsMask);
    Block<V> sum_ = splat_block<V>(0.0f);
  };
};

// One mean for each sign.
struct MeanOfEachSign {
  struct Extent {
    float positive = 0, negative = 0;  // sums
    uint32_t negatives = 0, max_abs = 0;
  };
  static constexpr uint32_t kMetaBytes = 8;

  // What a value adds to the sum of those whose sign bit is `wanted`.
  CGX_SHARED static float summand(float x, float scale, uint32_t wanted) {
    return bits_of(x) >> 31 == wanted ? x * scale : 0.0f;
  }
  static Extent extent_of(const float* x, uint32_t n) {
    Extent extent{.max_abs = max_abs_bits(x, n)};
    const float scale = sum_scale(extent.max_abs);
    extent.positive = sum_of(x, n, [scale](float v) { return summand(v, scale, 0); });
    extent.negative = sum_of(x, n, [scale](float v) { return summand(v, scale, 1); });
    for (uint32_t e = 0; e < n; ++e) extent.negatives += bits_of(x[e]) >> 31;
    return extent;
  }
  CGX_SHARED static void fit(const Extent& extent, uint32_t n, SignMeta& meta) {
    const uint32_t negatives = extent.negatives, positives = n - negatives;
    meta.positive = positives == 0 ? 0.0f : mean_of(extent.positive, positives, extent.max_abs);
    meta.negative = negatives == 0 ? 0.0f : mean_of(extent.negative, negatives, extent.max_abs);
  }
  CGX_SHARED static void put_meta(const SignMeta& meta, uint8_t* bytes) {
    const float words[2] = {meta.positive, meta.negative};
    std::memcpy(bytes, words, sizeof(words));
  }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, SignMeta& meta) {
    float words[2];
    std::memcpy(words, bytes, sizeof(words));
    meta = SignMeta();
    meta.positive = words[0];
    meta.negative = words[1];
    const uint32_t positive = bits_of(words[0]), negative = bits_of(words[1]);
    meta.nonfinite = positive == kNanBits && negative == kNanBits;
    const bool negative_good =
        negative == 0 || (negative > kSignBit && abs_bits(words[1]) < kInfBits);
    return meta.nonfinite || (positive < kInfBits && negative_good);
  }

  template <class V>
  class Scan {
   public:
    CGX_INLINE void add(const Block<V>& x) {
      for_each_vector([&](auto i) {
        const auto bits = V::bits(x.v[i.j]);
        const auto negative = V::less(bits, V::splat(0));
        const auto zero = V::splat(0);
        max_abs_ = V::max_signed(max_abs_, bits & V::splat(kAbsMask));
        negatives_ = negatives_ + V::template right<31>(bits);
        positive_.v[i.j] = positive_.v[i.j] + V::as_floats(V::select(negative, zero, bits));
        negative_.v[i.j] = negative_.v[i.j] + V::as_floats(V::select(negative, bits, zero));
      });
    }
    CGX_INLINE Extent extent() const {
      return {fold_block(positive_), fold_block(negative_), V::total(negatives_),
              static_cast<uint32_t>(V::highest_signed(max_abs_))};
    }

   private:
    typename V::Ints max_abs_ = V::splat(0), negatives_ = V::splat(0);
    Block<V> positive_ = splat_block<V>(0.0f), negative_ = splat_block<V>(0.0f);
  };
};

template <bool votes>
struct Signed : Sign<MeanMagnitude> {
  using Decoding = Signed;
  static constexpr bool kVotes = votes;
};
using EfSign = Signed<false>;
using SignVote = Signed<true>;
struct OneBit : Sign<MeanOfEachSign> {
  using Decoding = OneBit;
  static constexpr bool kVotes = false;
};

template <class Codec>
struct SignFamily {
  static uint64_t meta_bytes() { return Codec::kMetaBytes; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return Codec::code_bytes(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec&) {
    return Skeleton<Codec>::kOps;
  }
};
using EfSignFamily = SignFamily<EfSign>;
using SignVoteFamily = SignFamily<SignVote>;
using OneBitFamily = SignFamily<OneBit>;

}  // namespace
}  // namespace cgx::kernels
