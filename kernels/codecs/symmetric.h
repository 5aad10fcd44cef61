// Uniform levels around zero: value = (code - s) * unit with s = 2^(bits - 1) - 1 levels each way.
//
//   qsgd      2 to 8 bits, the largest level is the bucket's largest magnitude or its L2 norm
//   int8      8 bits, largest magnitude
//   terngrad  2 bits (-1, 0, 1), largest magnitude, on request clipped at 2.5 root mean squares
// Metadata of a bucket, 4 bytes: float unit; NaN: every value is NaN. Once the unit is known the
// arithmetic is max-min's with zero point s. Formulas: ARITHMETIC.md "Symmetric levels".
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codecs/maxmin.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

enum class Norm : uint8_t { kMax, kL2, kClipped };
constexpr float kClipDeviations = 2.5f;

struct SymmetricExtent {
  uint32_t max_abs = 0;
  float squares = 0;  // their sum, of values times square_scale(max_abs)
};

struct SymmetricMeta : MaxMinMeta {
  uint32_t clip = kInfBits;  // encoding only: larger magnitudes count as this one
};

// The largest level of a bucket, at least 0 and finite.
CGX_SHARED inline float largest_level(const SymmetricExtent& extent, uint32_t n, Norm norm) {
  const float largest = float_of(extent.max_abs);
  if (norm == Norm::kMax) return largest;
  const float scale = square_scale(extent.max_abs);
  const float squares = norm == Norm::kL2 ? extent.squares : extent.squares / static_cast<float>(n);
  const float root = square_root(squares) / scale;
  if (norm == Norm::kClipped) {
    const float clipped = kClipDeviations * root;
    return clipped < largest && clipped >= kNearlyConstant ? clipped : largest;
  }
  // Tiny squares vanish, huge roots do not fit: the norm is never below the largest magnitude.
  if (abs_bits(root) >= kInfBits) return kFloatMax;
  return root < largest ? largest : root;
}

CGX_SHARED inline SymmetricMeta fit_symmetric(const SymmetricExtent& extent, uint32_t n,
                                              int32_t levels, Norm norm, uint32_t limit) {
  SymmetricMeta meta;
  meta.zero_point = levels;
  meta.code_min = meta.code_max = levels;
  if (extent.max_abs >= kInfBits) {
    meta.nonfinite = true;
    meta.lo = float_of(kNanBits);
    return meta;
  }
  const float level = largest_level(extent, n, norm);
  if (level < kNearlyConstant) return meta;
  meta.code_min = 0;
  meta.code_max = 2 * levels;
  if (norm == Norm::kClipped) meta.clip = bits_of(level);
  const bool huge = bits_of(level) >= kHugeBits;
  const float steps = static_cast<float>(levels);
  meta.prescale = huge ? kHugeScale : 1.0f;
  meta.inverse = steps / (level * meta.prescale);
  meta.unit = level / steps;
  meta.special = huge || (norm != Norm::kMax && extent.max_abs >= kHugeToSquare);
  if (huge || limit != kInfBits) narrow_codes(meta, limit);
  return meta;
}

template <class V, Norm norm>
class SymmetricScan {
 public:
  CGX_INLINE void add(const Block<V>& x) {
    for_each_vector([&](auto i) {
      max_abs_ = V::max_signed(max_abs_, V::bits(x.v[i.j]) & V::splat(kAbsMask));
      if constexpr (norm != Norm::kMax) squares_.v[i.j] = squares_.v[i.j] + x.v[i.j] * x.v[i.j];
    });
  }
  CGX_INLINE SymmetricExtent extent() const {
    return {static_cast<uint32_t>(V::highest_signed(max_abs_)),
            norm == Norm::kMax ? 0.0f : fold_block(squares_)};
  }

 private:
  typename V::Ints max_abs_ = V::splat(0);
  Block<V> squares_ = splat_block<V>(0.0f);
};

// Values beyond the clip become +-clip.
template <class V, class Coder>
class ClippingCoder {
 public:
  CGX_INLINE ClippingCoder(const SymmetricMeta& meta, uint64_t key)
      : clip_(V::splat(meta.clip)), coder_(meta, key) {}
  CGX_INLINE void put(const Block<V>& x, uint8_t* block) {
    coder_.put(map(x,
                   [&](auto v) {
                     const auto bits = V::bits(v);
                     const auto magnitude = V::min_signed(bits & V::splat(kAbsMask), clip_);
                     return V::as_floats(magnitude | (bits & V::splat(kSignBit)));
                   }),
               block);
  }
  CGX_INLINE void finish(RangeStats& stats) const { coder_.finish(stats); }

 private:
  typename V::Ints clip_;
  Coder coder_;
};

template <uint32_t bits, Rounding rounding, Norm norm>
struct Symmetric : MaxMin<bits, rounding> {
  using Base = MaxMin<bits, rounding>;
  using Meta = SymmetricMeta;
  using Extent = SymmetricExtent;
  static constexpr uint32_t kMetaBytes = 4;
  static constexpr int32_t kLevels = (1 << (bits - 1)) - 1;

  static Extent extent_of(const float* x, uint32_t n) {
    Extent extent{.max_abs = max_abs_bits(x, n)};
    if (norm == Norm::kMax) return extent;
    const float scale = square_scale(extent.max_abs);
    extent.squares = sum_of(x, n, [scale](float v) { return square_of(v, scale); });
    return extent;
  }
  CGX_SHARED static uint32_t max_abs(const Extent& extent) { return extent.max_abs; }
  CGX_SHARED static Meta fit(const Extent& extent, uint32_t n, uint32_t limit) {
    return fit_symmetric(extent, n, kLevels, norm, limit);
  }

  CGX_SHARED static void put_meta(const Meta& meta, uint8_t* bytes) {
    const float word = meta.nonfinite ? meta.lo : meta.unit;
    std::memcpy(bytes, &word, sizeof(word));
  }
  CGX_SHARED static bool get_meta(const uint8_t* bytes, Meta& meta) {
    float word;
    std::memcpy(&word, bytes, sizeof(word));
    meta = Meta();
    meta.zero_point = kLevels;
    meta.code_max = 2 * kLevels;
    meta.nonfinite = bits_of(word) == kNanBits;
    if (meta.nonfinite) {
      meta.lo = word;
      return true;
    }
    meta.unit = word;
    return bits_of(word) < kInfBits;
  }

  CGX_SHARED static float clipped(float x, const Meta& meta) {
    const uint32_t magnitude = abs_bits(x) < meta.clip ? abs_bits(x) : meta.clip;
    return float_of(magnitude | (bits_of(x) & kSignBit));
  }
  static void code(const float* x, uint32_t n, const Meta& meta, uint64_t key, uint8_t* codes,
                   RangeStats& stats) {
    if constexpr (norm != Norm::kClipped) return Base::code(x, n, meta, key, codes, stats);
    float y[kBucketMax];
    for (uint32_t e = 0; e < n; ++e) y[e] = clipped(x[e], meta);
    Base::code(y, n, meta, key, codes, stats);
  }

  CGX_SHARED static bool nonfinite(const Meta& meta, const Extent&, uint32_t) {
    return meta.nonfinite;
  }

  using Decoding = Symmetric<bits, Rounding::kNearest, Norm::kMax>;
  template <class V>
  using Scan = SymmetricScan<V, norm>;
  template <class V>
  using PlainCoder = MaxMinCoder<V, bits, rounding>;
  template <class V>
  using Coder =
      std::conditional_t<norm == Norm::kClipped, ClippingCoder<V, PlainCoder<V>>, PlainCoder<V>>;
};

struct SymmetricFamily {
  static uint64_t meta_bytes() { return 4; }
  static uint64_t code_bytes(const CodecSpec& spec, uint64_t elements) {
    return uint64_t{8} * spec.bits * blocks_of(elements);
  }
};

// By norm, because both together compile for most of a minute: each has a source of its own.
template <Norm norm>
struct QsgdOf : SymmetricFamily {
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.stochastic() ? instance<Skeleton, Rounding::kStochastic>(spec.bits)
                             : instance<Skeleton, Rounding::kNearest>(spec.bits);
  }

 private:
  template <template <class> class Skeleton, Rounding rounding>
  static const auto& instance(uint8_t bits) {
    static constexpr decltype(&Skeleton<Symmetric<2, rounding, norm>>::kOps) kInstances[7] = {
        &Skeleton<Symmetric<2, rounding, norm>>::kOps,
        &Skeleton<Symmetric<3, rounding, norm>>::kOps,
        &Skeleton<Symmetric<4, rounding, norm>>::kOps,
        &Skeleton<Symmetric<5, rounding, norm>>::kOps,
        &Skeleton<Symmetric<6, rounding, norm>>::kOps,
        &Skeleton<Symmetric<7, rounding, norm>>::kOps,
        &Skeleton<Symmetric<8, rounding, norm>>::kOps};
    return *kInstances[bits - 2];
  }
};

using QsgdFamily = QsgdOf<Norm::kMax>;  // sizes are the same

struct Int8Family {
  static uint64_t meta_bytes() { return 4; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return uint64_t{64} * blocks_of(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.stochastic() ? Skeleton<Symmetric<8, Rounding::kStochastic, Norm::kMax>>::kOps
                             : Skeleton<Symmetric<8, Rounding::kNearest, Norm::kMax>>::kOps;
  }
};

struct TernGradFamily {
  static uint64_t meta_bytes() { return 4; }
  static uint64_t code_bytes(const CodecSpec&, uint64_t elements) {
    return uint64_t{16} * blocks_of(elements);
  }
  template <template <class> class Skeleton>
  static const auto& ops(const CodecSpec& spec) {
    return spec.flags & CodecSpec::kClip
               ? Skeleton<Symmetric<2, Rounding::kStochastic, Norm::kClipped>>::kOps
               : Skeleton<Symmetric<2, Rounding::kStochastic, Norm::kMax>>::kOps;
  }
};

}  // namespace
}  // namespace cgx::kernels
