// Codecs that keep one number per value: raw (fp32 on the wire), fp16 and bf16.
//
// No metadata; NaN and infinity stay where they are. fp16 and bf16 store finite values that do not
// fit as the largest finite one, and count them.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/codecs/max_abs.h"
#include "kernels/floats.h"
#include "kernels/lanes/block.h"

namespace cgx::kernels {
namespace {

// What the three share. Number has Word, put(x, limit, saturated) and get(word); `limit` is where
// the receiver's dtype overflows, and no finite x may decode to something at or beyond it.
template <class Number>
struct Cast : MaxAbsExtent {
  struct Meta {
    bool nonfinite = false;
    uint32_t limit = kInfBits;
    static constexpr bool special = false;
  };
  using Word = typename Number::Word;
  static constexpr uint32_t kMetaBytes = 0;
  static constexpr uint32_t kBlockBytes = 64 * sizeof(Word);
  CGX_SHARED static constexpr uint64_t code_bytes(uint64_t elements) {
    return sizeof(Word) * elements;
  }

  CGX_SHARED static Meta fit(Extent max_abs, uint32_t, uint32_t limit) {
    return {max_abs >= limit, limit};
  }
  CGX_SHARED static void put_meta(const Meta&, uint8_t*) {}
  CGX_SHARED static bool get_meta(const uint8_t*, Meta&) { return true; }

  template <class Count>
  CGX_SHARED static Word word_of(float x, const Meta& meta, Count& saturated) {
    return Number::put(x, meta.limit, saturated);
  }
  CGX_SHARED static float value_of(Word word) { return Number::get(word); }

  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t, uint8_t* codes,
                   RangeStats& stats) {
    for (uint32_t e = 0; e < n; ++e) {
      const Word word = word_of(x[e], meta, stats.saturated);
      std::memcpy(codes + sizeof(Word) * e, &word, sizeof(Word));
    }
  }
  static void value(const uint8_t* codes, uint32_t n, const Meta&, float* x) {
    for (uint32_t e = 0; e < n; ++e) {
      Word word;
      std::memcpy(&word, codes + sizeof(Word) * e, sizeof(Word));
      x[e] = value_of(word);
    }
  }
  CGX_SHARED static bool nonfinite(const Meta&, Extent decoded, uint32_t limit) {
    return decoded >= limit;
  }

  using Decoding = Cast;
  static constexpr bool kKeepsNan = true, kScansValues = true;
  static constexpr bool kEachAlone = true;  // lanes/vector_alone.h

  template <class V>
  using Scan = MaxAbsScan<V>;

  template <class V>
  class Coder {
   public:
    CGX_INLINE Coder(const Meta& meta, uint64_t) : limit_(meta.limit) {}
    CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
      for_each_vector([&](auto i) {
        Number::template put<V>(block + 16 * sizeof(Word) * i.j, x.v[i.j], limit_, saturated_);
      });
    }
    CGX_INLINE void finish(RangeStats& stats) const {
      if (V::highest_signed(saturated_) != 0) stats.saturated += V::total(saturated_);
    }

   private:
    uint32_t limit_;
    typename V::Ints saturated_ = V::splat(0);
  };

  template <class V>
  class Valuer {
   public:
    explicit CGX_INLINE Valuer(const Meta&) {}
    CGX_INLINE Block<V> get(const uint8_t* block) const {
      constexpr size_t kStep = 16 * sizeof(Word);
      return {{Number::template get<V>(block), Number::template get<V>(block + kStep),
               Number::template get<V>(block + 2 * kStep),
               Number::template get<V>(block + 3 * kStep)}};
    }
  };
};

// Finite values from `first` on (magnitude bits) become +-largest; counts them per lane.
template <class V>
CGX_INLINE typename V::Floats saturate(typename V::Floats x, uint32_t first,
                                       typename V::Ints largest, typename V::Ints& saturated) {
  const auto bits = V::bits(x), magnitude = bits & V::splat(kAbsMask);
  const auto high =
      V::both(V::less(V::splat(first - 1), magnitude), V::less(magnitude, V::splat(kInfBits)));
  saturated = saturated + V::select(high, V::splat(1), V::splat(0));
  return V::as_floats(V::select(high, largest | (bits & V::splat(kSignBit)), bits));
}

struct RawNumber {
  using Word = float;
  template <class V>
  static CGX_INLINE void put(uint8_t* p, typename V::Floats x, uint32_t, typename V::Ints&) {
    V::store(reinterpret_cast<float*>(p), x);
  }
  template <class V>
  static CGX_INLINE typename V::Floats get(const uint8_t* p) {
    return V::load(reinterpret_cast<const float*>(p));
  }
  template <class Count>
  CGX_SHARED static Word put(float x, uint32_t, Count&) {
    return x;
  }
  CGX_SHARED static float get(Word word) { return word; }
};

struct HalfNumber {
  using Word = uint16_t;
  template <class V>
  static CGX_INLINE void put(uint8_t* p, typename V::Floats x, uint32_t,
                             typename V::Ints& saturated) {
    const auto largest = V::splat(0x477fe000u);  // 65504
    V::store_half(reinterpret_cast<uint16_t*>(p),
                  saturate<V>(x, kHalfOverflowBits, largest, saturated));
  }
  template <class V>
  static CGX_INLINE typename V::Floats get(const uint8_t* p) {
    return V::load_half(reinterpret_cast<const uint16_t*>(p));
  }
  template <class Count>
  CGX_SHARED static Word put(float x, uint32_t, Count& saturated) {
    if (abs_bits(x) < kHalfOverflowBits || abs_bits(x) >= kInfBits) return to_half(x);
    ++saturated;
    return bits_of(x) & kSignBit ? 0xfbff : 0x7bff;
  }
  CGX_SHARED static float get(Word word) { return from_half(word); }
};

struct BrainNumber {
  using Word = uint16_t;
  template <class V>
  static CGX_INLINE void put(uint8_t* p, typename V::Floats x, uint32_t limit,
                             typename V::Ints& saturated) {
    const auto kept =
        saturate<V>(x, first_saturated(limit), V::splat(largest(limit) << 16), saturated);
    V::store_halfwords(p, brain_words<V>(kept));
  }
  template <class V>
  static CGX_INLINE typename V::Floats get(const uint8_t* p) {
    return load_brain<V>(reinterpret_cast<const uint16_t*>(p));
  }
  template <class Count>
  CGX_SHARED static Word put(float x, uint32_t limit, Count& saturated) {
    if (abs_bits(x) < first_saturated(limit) || abs_bits(x) >= kInfBits) return to_brain(x);
    ++saturated;
    return static_cast<uint16_t>((bits_of(x) & kSignBit) >> 16 | largest(limit));
  }
  // The largest bf16 below the limit, and the first magnitude that would round beyond it.
  CGX_SHARED static constexpr uint32_t largest(uint32_t limit) { return (limit - 1) >> 16; }
  CGX_SHARED static constexpr uint32_t first_saturated(uint32_t limit) {
    return largest(limit) << 16 | 0x8000u;
  }
  CGX_SHARED static float get(Word word) { return canonical_nan(from_brain(word)); }
};

using Raw = Cast<RawNumber>;
using Half = Cast<HalfNumber>;
using Brain = Cast<BrainNumber>;

template <class Codec>
struct CastFamily {
  static uint64_t meta_bytes() { return 0; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return Codec::code_bytes(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec&) {
    return Skeleton<Codec>::kOps;
  }
};
using RawFamily = CastFamily<Raw>;
using HalfFamily = CastFamily<Half>;
using BrainFamily = CastFamily<Brain>;

}  // namespace
}  // namespace cgx::kernels
