// The vector skeletons for what is received: decode, decode-add, and sums of several machines'
// parts. They depend on a codec's layout alone, not on how it rounds.
#pragma once

#include <cstring>

#include "kernels/lanes/block.h"
#include "kernels/lanes/scalar.h"
#include "kernels/lanes/sources.h"
#include "kernels/ops.h"
#include "kernels/range.h"

namespace cgx::kernels {
namespace {

// sum of squares of x * scale, by the partials of sums.h.
template <class V>
class SquareSum {
 public:
  explicit CGX_INLINE SquareSum(float scale) : scale_(V::splat(scale)) {}
  CGX_INLINE void add(const Block<V>& x) {
    const Block<V> y = x * scale_;
    for_each_vector([&](auto i) { sum_.v[i.j] = sum_.v[i.j] + y.v[i.j] * y.v[i.j]; });
  }
  CGX_INLINE float total() const { return fold_block(sum_); }

 private:
  typename V::Floats scale_;
  Block<V> sum_ = splat_block<V>(0.0f);
};

// A bucket of finished sums to the targets. False, with targets undefined, if one is not finite for
// them.
template <class V>
CGX_INLINE bool store_result(const float* sum, uint32_t n, uint32_t limit, uint64_t first,
                             const Targets<V>& targets) {
  auto max_abs = V::splat(0);
#pragma GCC unroll 1
  for (uint32_t e = 0; e < n; e += kBlock) {
    const Block<V> x = load_block<V>(sum + e);
    for_each_vector(
        [&](auto i) { max_abs = V::max_signed(max_abs, V::bits(x.v[i.j]) & V::splat(kAbsMask)); });
    targets.store(first + e, x);
  }
  return static_cast<uint32_t>(V::highest_signed(max_abs)) < limit;
}

// votes.h on sixteen lanes.
template <class V>
CGX_INLINE void count_block_votes(float* sum, uint32_t n, float weight) {
  const auto scale = V::splat(bits_of(weight)), zero = V::splat(0);
  const auto sign = V::splat(weight == 0 ? 0 : kSignBit);    // no negative zeros
  const auto even = V::template left<31>(V::iota()) & sign;  // by place: even ones positive
#pragma GCC unroll 1
  for (uint32_t e = 0; e < n; e += kBlock) {
    store_block<V>(
        sum + e, map(load_block<V>(sum + e), [&](auto votes) {
          const auto bits = V::bits(votes);
          const auto tie = V::select(V::less(zero, bits), zero, even);
          return V::canonical_nan(V::as_floats(scale ^ V::select(V::less(bits, zero), sign, tie)));
        }));
  }
}

template <class V, class Codec>
struct VectorDecoding {
  using Reference = Scalar<Codec>;
  using Meta = typename Codec::Meta;
  using Scan = typename Codec::template Scan<V>;
  using Valuer = typename Codec::template Valuer<V>;

  static uint64_t decode(const DecodeJob& job, const Tuning& tuning, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const Targets<V> targets(job.targets, job.target_count, job.dtype,
                             streams(tuning.decode, job.elements));
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      if (range.count(b) % kBlock != 0) {
        if (!Reference::decode_bucket(job, b, stats)) return b;
        continue;
      }
      Meta meta;
      if (!Codec::get_meta(bytes_of(job) + range.meta(b), meta)) return b;
      const uint64_t first = range.first(b);
      const uint32_t n = range.count(b);
      fetch_codes(tuning.decode, bytes_of(job) + range.codes(b), n);
      const auto extent = put_values(bytes_of(job) + range.codes(b), n, meta, first, targets, {});
      if (!Codec::nonfinite(meta, extent, overflow_bits(job.dtype))) [[likely]]
        continue;
      ++stats.nonfinite_buckets;
      if (job.residual_out) {
        keep_residual(job.residual_in, job.residual_scale, job.residual_out, first, n);
      }
    }
    if (targets.streams()) V::stream_fence();
    return kNoBucket;
  }

  static uint64_t decode_add(const DecodeAddJob& job, const Tuning& tuning, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      if (range.count(b) % kBlock != 0) {
        if (!Reference::decode_add_bucket(job, b, stats)) return b;
        continue;
      }
      Meta meta;
      typename Codec::Extent extent;
      fetch_codes(tuning.decode, bytes_of(job) + range.codes(b), range.count(b));
      if (!add_values(bytes_of(job), range, b, job.sum + range.first(b), tuning.decode_add, meta,
                      extent)) {
        return b;
      }
      stats.nonfinite_buckets += Codec::nonfinite(meta, extent, kInfBits);
    }
    return kNoBucket;
  }

  static uint64_t combine(const CombineJob& job, const Tuning& tuning, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const Targets<V> targets(job.targets, job.target_count, job.dtype,
                             streams(tuning.decode, job.elements));
    const uint32_t limit = overflow_bits(job.dtype);
    alignas(64) float sum[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      const uint32_t n = range.count(b);
      if (n % kBlock != 0) {
        if (!Reference::combine_bucket(job, b, stats)) return b;
        continue;
      }
      if (!add_encoded(job.contributions, range, b, sum)) return b;
      if (store_result<V>(sum, n, limit, range.first(b), targets)) [[likely]]
        continue;
      if (!Reference::combine_bucket(job, b, stats)) return b;
    }
    if (targets.streams()) V::stream_fence();
    return kNoBucket;
  }

  // The error of an encoding, written beside the values: residual[e] = sum[e] - value. And what the
  // receivers' values measure.
  struct Error {
    const float* sum = nullptr;
    float* residual = nullptr;
    bool stream = false;
    SquareSum<V>* sent = nullptr;
  };

  // Values of one bucket to the targets; what a scan of them finds, where the codec needs one.
  [[gnu::noinline]] static typename Codec::Extent put_values(const uint8_t* codes, uint32_t n,
                                                             const Meta& meta, uint64_t first,
                                                             const Targets<V>& targets,
                                                             const Error& error) {
    const Valuer valuer(meta);
    Scan scan;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
      const Block<V> value = valuer.get(codes);
      if constexpr (Codec::kScansValues) scan.add(value);
      if (error.sent) error.sent->add(value);
      if (error.residual) {
        store_as<V>(error.residual + e, load_block<V>(error.sum + e) - value, error.stream);
      }
      targets.store(first + e, value);
    }
    return Codec::kScansValues ? scan.extent() : typename Codec::Extent();
  }

  // A bucket's worth of codes: the hardware's own fetching stops at every page.
  static CGX_INLINE void fetch_codes(const Access& access, const uint8_t* codes, uint32_t n) {
    fetch<V>(access, codes + access.ahead_bytes, Codec::code_bytes(n));
  }

  // sum += values of bucket b. False if the metadata is corrupt.
  [[gnu::noinline]] static bool add_values(const uint8_t* bytes, const Range<Codec>& range,
                                           uint64_t b, float* sum, const Access& access, Meta& meta,
                                           typename Codec::Extent& extent) {
    if (!Codec::get_meta(bytes + range.meta(b), meta)) return false;
    const Valuer valuer(meta);
    const uint8_t* codes = bytes + range.codes(b);
    const char* next = reinterpret_cast<const char*>(sum) + access.ahead_bytes;
    const uint32_t n = range.count(b);
    Scan scan;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
      const Block<V> value = valuer.get(codes);
      if constexpr (Codec::kScansValues) scan.add(value);
      fetch<V>(access, next + sizeof(float) * e, kBlock * sizeof(float));
      store_block<V>(sum + e, canonical_nan(load_block<V>(sum + e) + value));
    }
    if constexpr (Codec::kScansValues) extent = scan.extent();
    return true;
  }

  // Encoded parts of one bucket on their way into a sum, two at a time: a pass reads and writes the
  // sum once. A NaN stays one whatever is added, so the last pass makes it canonical for all.
  // False: the metadata of a part is corrupt.
  class Adder {
   public:
    CGX_INLINE Adder(const Range<Codec>& range, uint64_t b, float* sum)
        : range_(range), b_(b), sum_(sum) {}

    CGX_INLINE bool add(const uint8_t* part) {
      if (waiting_ < 2) {
        parts_[waiting_++] = part;
        return true;
      }
      const bool added = add_waiting(false);
      parts_[0] = part;
      waiting_ = 1;
      return added;
    }
    CGX_INLINE bool finish() {
      const bool added = add_waiting(true);
      if (is_first_) std::memset(sum_, 0, range_.count(b_) * sizeof(float));
      return added;
    }

   private:
    CGX_INLINE bool add_waiting(bool last) {
      if (waiting_ == 0) return true;
      const bool added = waiting_ == 1 ? add_parts<1>(parts_, range_, b_, is_first_, last, sum_)
                                       : add_parts<2>(parts_, range_, b_, is_first_, last, sum_);
      waiting_ = 0;
      is_first_ = false;
      return added;
    }

    template <int count>
    [[gnu::noinline]] static bool add_parts(const uint8_t* const* parts, const Range<Codec>& range,
                                            uint64_t b, bool is_first, bool last, float* sum) {
      Meta meta, more_meta;
      if (!Codec::get_meta(parts[0] + range.meta(b), meta)) return false;
      if (!Codec::get_meta(parts[count - 1] + range.meta(b), more_meta)) return false;
      const Valuer valuer(meta), more_valuer(more_meta);
      const uint8_t* codes = parts[0] + range.codes(b);
      const uint8_t* more = parts[count - 1] + range.codes(b);
      const uint32_t n = range.count(b);
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock) {
        const Block<V> before = is_first ? splat_block<V>(0.0f) : load_block<V>(sum + e);
        Block<V> x = before + valuer.get(codes);
        codes += Codec::kBlockBytes;
        if constexpr (count == 2) {
          x = x + more_valuer.get(more);
          more += Codec::kBlockBytes;
        }
        store_block<V>(sum + e, last ? canonical_nan(x) : x);
      }
      return true;
    }

    const Range<Codec>& range_;
    uint64_t b_;
    float* sum_;
    const uint8_t* parts_[2];
    uint32_t waiting_ = 0;
    bool is_first_ = true;
  };

  // The sum of the encoded parts, from +0.0. False if one is corrupt.
  static bool add_encoded(std::span<const Contribution> parts, const Range<Codec>& range,
                          uint64_t b, float* sum) {
    if constexpr (is_vote<Codec>()) {
      return add_votes_of(parts, range, b, sum);
    } else {
      Adder adder(range, b, sum);
      for (const Contribution& part : parts) {
        if (part.kind == Contribution::Kind::kAbsent) continue;
        if (!adder.add(bytes_of(part))) return false;
      }
      return adder.finish();
    }
  }

  static bool add_votes_of(std::span<const Contribution> parts, const Range<Codec>& range,
                           uint64_t b, float* sum) {
    bool is_first = true;
    float weight = 0;
    for (const Contribution& part : parts) {
      if (part.kind == Contribution::Kind::kAbsent) continue;
      if (!add_encoded_votes(bytes_of(part), range, b, is_first, sum, weight)) return false;
      is_first = false;
    }
    if (is_first) std::memset(sum, 0, range.count(b) * sizeof(float));
    count_block_votes<V>(sum, range.count(b), weight);
    return true;
  }

  static bool add_encoded_votes(const uint8_t* bytes, const Range<Codec>& range, uint64_t b,
                                bool is_first, float* sum, float& weight) {
    Meta meta;
    if (!Codec::get_meta(bytes + range.meta(b), meta)) return false;
    weight += meta.scale();
    const Valuer valuer(ballot<Meta>());
    const uint8_t* codes = bytes + range.codes(b);
    const uint32_t n = range.count(b);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
      const Block<V> before = is_first ? splat_block<V>(0.0f) : load_block<V>(sum + e);
      store_block<V>(sum + e, before + valuer.get(codes));
    }
    return true;
  }
};

}  // namespace
}  // namespace cgx::kernels
