// The vector skeletons: every operation of a codec, sixteen lanes at a time.
//
// Same structure as scalar.h, bucket by bucket: a scan finds the metadata, a second pass over the
// cached bucket writes the codes, a third reads them back where values are wanted. Short last
// buckets and special ones go to the scalar skeleton. A codec supplies Scan, Coder and Valuer over
// V.
//
// Buffers may be unaligned; nothing beyond a range is read or written.
#pragma once

#include <cstring>

#include "kernels/block.h"
#include "kernels/ops.h"
#include "kernels/range.h"
#include "kernels/scalar.h"
#include "kernels/sources.h"

namespace cgx::kernels {
namespace {

template <class V, class Codec>
struct Vector {
  using Reference = Scalar<Codec>;
  using Meta = typename Codec::Meta;
  using Scan = typename Codec::template Scan<V>;
  using Coder = typename Codec::template Coder<V>;
  using Valuer = typename Codec::template Valuer<V>;
  static constexpr uint32_t kBlockBytes = Codec::kBlockBytes;

  static void encode(const EncodeJob& job, RangeStats& stats) {
    with_source<V, Codec::kKeepsNan>(job.source, job.elements, [&](const auto& source) {
      if (job.residual_out) {
        encode_from<true>(job, source, stats);
      } else {
        encode_from<false>(job, source, stats);
      }
    });
    Reference::pad(Range<Codec>(job.spec, job.elements), bytes_of(job));
    if (job.stream_stores || job.stream_residual) V::stream_fence();
  }

  static uint64_t decode(const DecodeJob& job, RangeStats& stats) {
    const bool stream =
        job.stream_stores && Targets{job.targets, job.target_count}.can_stream(job.dtype);
    uint64_t bad = kNoBucket;
    with_small_float(job.dtype, [&]<DType dtype>() {
      bad = stream ? decode_as<dtype, true>(job, stats) : decode_as<dtype, false>(job, stats);
    });
    if (stream) V::stream_fence();
    return bad;
  }

  static uint64_t reduce(const ReduceJob& job, RangeStats& stats) {
    const bool stream =
        job.stream_stores && Targets{job.targets, job.target_count}.can_stream(job.dtype);
    Reference::pad(Range<Codec>(job.spec, job.elements), bytes_of(job));
    uint64_t bad = kNoBucket;
    with_small_float(job.dtype, [&]<DType dtype>() {
      bad = stream ? reduce_as<dtype, true>(job, stats) : reduce_as<dtype, false>(job, stats);
    });
    if (stream || job.stream_residual) V::stream_fence();
    return bad;
  }

  static uint64_t decode_add(const DecodeAddJob& job, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      const uint32_t n = range.count(b);
      if (n % kBlock != 0) {
        if (!Reference::decode_add_bucket(job, b, stats)) return b;
        continue;
      }
      Meta meta;
      if (!Codec::get_meta(bytes_of(job) + range.meta(b), meta)) return b;
      const Valuer valuer(meta);
      const uint8_t* codes = bytes_of(job) + range.codes(b);
      float* sum = job.sum + range.first(b);
      Seen seen;
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, codes += kBlockBytes) {
        const Block<V> value = valuer.get(codes);
        seen.add(value);
        store_block<V>(sum + e, canonical(load_block<V>(sum + e) + value));
      }
      stats.nonfinite_buckets += seen.nonfinite(meta, kInfBits);
    }
    return kNoBucket;
  }

  static constexpr CodecOps kOps = {encode, Vector<V, typename Codec::Decoding>::decode, reduce,
                                    Vector<V, typename Codec::Decoding>::decode_add};

 private:
  // Non-finite values of a decoded bucket: quantizers say so in the metadata, casts in the values.
  struct Seen {
    Scan scan;
    CGX_INLINE void add(const Block<V>& x) {
      if constexpr (Codec::kKeepsNan) scan.add(x);
    }
    CGX_INLINE bool nonfinite(const Meta& meta, uint32_t limit) const {
      if constexpr (Codec::kKeepsNan) return scan.nonfinite(limit);
      return meta.nonfinite;
    }
  };

  static CGX_INLINE Block<V> canonical(const Block<V>& x) {
    return map(x, [](auto v) { return V::canonical_nan(v); });
  }

  // A bucket on its way in: scanned block by block and kept. Coding from the copy, never from the
  // source, is faster on data from DRAM (README.md "Speed"), and a client that writes to the source
  // in between cannot set codes and metadata at odds.
  template <class Source>
  struct Incoming {
    const Source& source;
    float* scratch;
    uint64_t first = 0;
    Scan scan = {};

    CGX_INLINE void start(uint64_t next_first, float* next_scratch) {
      first = next_first;
      scratch = next_scratch;
      scan = {};
    }
    CGX_INLINE void step(uint32_t e) {
      const Block<V> x = source.get(first + e);
      store_block<V>(scratch + e, x);
      scan.add(x);
    }
    CGX_INLINE void rest(uint32_t n) {
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock) step(e);
    }
  };

  // While bucket b is coded, bucket b + 1 is scanned, block by block: the divisions of the metadata
  // and the latency of memory hide behind the other's work. The last one is scanned twice, for one
  // loop.
  template <bool feedback, class Source>
  static void encode_from(const EncodeJob& job, const Source& source, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint32_t n = job.spec.bucket;
    const uint64_t whole = job.elements / n;
    alignas(64) float scratch[2][kBucketMax];
    Incoming<Source> incoming{source, scratch[0]};
    if (whole > 0) incoming.rest(n);
    for (uint64_t b = 0; b < whole; ++b) {
      const float* x = incoming.scratch;
      const Meta meta = incoming.scan.fit(kInfBits);
      incoming.start((b + 1 < whole ? b + 1 : b) * n, scratch[(b + 1) % 2]);
      if (meta.special || (meta.nonfinite && !Codec::kKeepsNan)) [[unlikely]] {
        Reference::encode_bucket(job, b, stats);
        incoming.rest(n);
      } else {
        encode_bucket<feedback>(job, range, b, x, meta, incoming, stats);
      }
    }
    if (whole < range.buckets()) Reference::encode_bucket(job, whole, stats);
  }

  template <bool feedback, class Source>
  static CGX_INLINE void encode_bucket(const EncodeJob& job, const Range<Codec>& range, uint64_t b,
                                       const float* x, const Meta& meta, Incoming<Source>& next,
                                       RangeStats& stats) {
    const uint32_t n = job.spec.bucket;
    const uint64_t first = b * n;
    Output codes(bytes_of(job) + range.codes(b), Codec::code_bytes(n), job.stream_stores);
    float* residual = feedback ? job.residual_out + first : nullptr;
    const bool stream_residual = job.stream_residual && is_line(residual);
    Codec::put_meta(meta, bytes_of(job) + range.meta(b));
    Coder coder(meta, bucket_key(job.key.stream, job.key.first_bucket + b));
    const Valuer valuer(meta);
    uint8_t* block = codes.begin();
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, block += kBlockBytes) {
      next.step(e);
      const Block<V> value = load_block<V>(x + e);
      coder.put(value, block);
      if constexpr (feedback) {
        store_as<V>(residual + e, value - valuer.get(block), stream_residual);
      }
    }
    coder.finish(stats);
    codes.template flush<V>();
    stats.nonfinite_buckets += meta.nonfinite;
    if (feedback && meta.nonfinite) {
      keep_residual(job.source.residual_in, job.residual_out, first, n);
    }
  }

  static CGX_INLINE void put_codes(const float* x, uint32_t n, const Meta& meta, uint64_t key,
                                   uint8_t* codes, RangeStats& stats) {
    stats.nonfinite_buckets += meta.nonfinite;
    if (!Codec::kKeepsNan && meta.nonfinite) [[unlikely]] {
      std::memset(codes, 0, Codec::code_bytes(n));
      return;
    }
    Coder coder(meta, key);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += kBlockBytes) {
      coder.put(load_block<V>(x + e), codes);
    }
    coder.finish(stats);
  }

  template <DType dtype, bool stream>
  static uint64_t decode_as(const DecodeJob& job, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const Targets targets{job.targets, job.target_count};
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      const uint64_t first = range.first(b);
      const uint32_t n = range.count(b);
      if (n % kBlock != 0) {
        if (!Reference::decode_bucket(job, b, stats)) return b;
        continue;
      }
      Meta meta;
      if (!Codec::get_meta(bytes_of(job) + range.meta(b), meta)) return b;
      const Valuer valuer(meta);
      const uint8_t* codes = bytes_of(job) + range.codes(b);
      Seen seen;
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, codes += kBlockBytes) {
        const Block<V> value = valuer.get(codes);
        seen.add(value);
        targets.template store<V, dtype, stream>(first + e, value);
      }
      if (!seen.nonfinite(meta, overflow_bits(dtype))) [[likely]]
        continue;
      ++stats.nonfinite_buckets;
      if (job.residual_out) keep_residual(job.residual_in, job.residual_out, first, n);
    }
    return kNoBucket;
  }

  template <DType dtype, bool stream>
  static uint64_t reduce_as(const ReduceJob& job, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    alignas(64) float sum[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      const uint32_t n = range.count(b);
      if (n % kBlock == 0) {
        if (!add_contributions<dtype>(job, range, b, sum)) return b;
        const Meta meta = finish_sum<dtype>(sum, n);
        if (!meta.special) [[likely]] {
          put_result<dtype, stream>(job, range, b, sum, meta, stats);
          continue;
        }
      }
      if (!Reference::reduce_bucket(job, b, stats)) return b;
    }
    return kNoBucket;
  }

  template <DType dtype>
  static CGX_INLINE bool add_contributions(const ReduceJob& job, const Range<Codec>& range,
                                           uint64_t b, float* sum) {
    bool empty = true;
    for (const Contribution& part : job.contributions) {
      if (part.kind == Contribution::Kind::kAbsent) continue;
      const Summand summand{part, range, b, sum, job.elements};
      const bool good =
          part.kind == Contribution::Kind::kRaw
              ? (empty ? summand.template raw<dtype, true>() : summand.template raw<dtype, false>())
              : (empty ? summand.template encoded<true>() : summand.template encoded<false>());
      if (!good) return false;
      empty = false;
    }
    if (empty) std::memset(sum, 0, range.count(b) * sizeof(float));
    return true;
  }

  // One contribution to bucket b of the sum, which starts from +0.0.
  struct Summand {
    const Contribution& part;
    const Range<Codec>& range;
    uint64_t b;
    float* sum;
    uint64_t elements;

    template <bool to_zero>
    CGX_INLINE void add(uint32_t e, const Block<V>& x) const {
      const auto zero = V::splat(0.0f);
      const Block<V> before = to_zero ? Block<V>{{zero, zero, zero, zero}} : load_block<V>(sum + e);
      store_block<V>(sum + e, before + x);
    }

    template <DType dtype, bool to_zero>
    [[gnu::noinline]] bool raw() const {
      const Source<V, dtype, false> source(part.raw, elements);
      const uint64_t first = range.first(b);
      const uint32_t n = range.count(b);
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock) add<to_zero>(e, source.get(first + e));
      return true;
    }

    template <bool to_zero>
    [[gnu::noinline]] bool encoded() const {
      Meta meta;
      if (!Codec::get_meta(bytes_of(part) + range.meta(b), meta)) return false;
      const Valuer valuer(meta);
      const uint8_t* codes = bytes_of(part) + range.codes(b);
      const uint32_t n = range.count(b);
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, codes += kBlockBytes)
        add<to_zero>(e, valuer.get(codes));
      return true;
    }
  };

  template <DType dtype>
  static CGX_INLINE Meta finish_sum(float* sum, uint32_t n) {
    const uint32_t limit = overflow_bits(dtype);
    Scan scan;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) {
      Block<V> x = load_block<V>(sum + e);
      if constexpr (Codec::kKeepsNan) x = canonical(x);
      if constexpr (dtype != DType::kF32) {
        x = map(x, [&](auto v) { return overflow_to_infinity<V>(v, limit); });
      }
      if constexpr (Codec::kKeepsNan || dtype != DType::kF32) store_block<V>(sum + e, x);
      scan.add(x);
    }
    return scan.fit(limit);
  }

  // The own bytes, and what they decode to: residual and local results.
  template <DType dtype, bool stream>
  static CGX_INLINE void put_result(const ReduceJob& job, const Range<Codec>& range, uint64_t b,
                                    const float* sum, const Meta& meta, RangeStats& stats) {
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    const Targets targets{job.targets, job.target_count};
    Codec::put_meta(meta, bytes_of(job) + range.meta(b));
    uint8_t* codes = bytes_of(job) + range.codes(b);
    put_codes(sum, n, meta, bucket_key(job.key.stream, job.key.first_bucket + b), codes, stats);
    if (job.target_count == 0 && job.residual_out == nullptr) return;
    float* residual = job.residual_out ? job.residual_out + first : nullptr;
    const bool stream_residual = job.stream_residual && is_line(residual);
    const Valuer valuer(meta);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += kBlockBytes) {
      const Block<V> value = valuer.get(codes);
      if (residual) store_as<V>(residual + e, load_block<V>(sum + e) - value, stream_residual);
      targets.template store<V, dtype, stream>(first + e, value);
    }
    if (job.residual_out && meta.nonfinite) {
      keep_residual(job.residual_in, job.residual_out, first, n);
    }
  }
};

// result = cast(sum of ranks * scale + residual), to every target.
template <class V, DType dtype>
void vector_local_reduce(const LocalReduceJob& job) {
  const Source<V, dtype, true> source(job.source, job.elements);
  const bool plain = is_plain(job.source);
  const Targets targets{job.targets, job.target_count};
  for (uint64_t first = 0; first < job.elements; first += job.bucket) {
    const uint64_t left = job.elements - first;
    const uint32_t n = left < job.bucket ? static_cast<uint32_t>(left) : job.bucket;
    if (n % kBlock != 0 || plain || job.residual_out) {
      local_reduce_values(job, first, n);
      continue;
    }
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) {
      targets.template store<V, dtype, false>(first + e, source.get(first + e));
    }
  }
}

}  // namespace
}  // namespace cgx::kernels
