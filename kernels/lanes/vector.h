// The vector skeletons: every operation of a codec, sixteen lanes at a time.
//
// Same structure as scalar.h, bucket by bucket: a scan finds the metadata, a second pass over the
// cached bucket writes the codes, a third reads them back where values are wanted. Buckets that end
// within a block of 64 values and special ones go to the scalar skeleton. A codec supplies Scan,
// Coder and Valuer over V. Element types and streaming are decided per block, not per instance: it
// costs nothing beside memory, and there are enough instances.
//
// Buffers may be unaligned; nothing beyond a range is read or written.
#pragma once

#include "kernels/lanes/vector_alone.h"
#include "kernels/lanes/vector_reduce.h"

namespace cgx::kernels {
namespace {

// A bucket on its way in: scanned block by block and kept. Coding from the copy, never from the
// source, is faster on data from DRAM (README.md "Speed"), and a client that writes to the source
// in between cannot set codes and metadata at odds.
template <class V, class Scan, class Source>
struct Incoming {
  const Source& source;
  float* x;
  uint64_t first = 0;
  uint32_t n = 0;
  Scan scan = {};

  CGX_INLINE void start(uint64_t next_first, uint32_t next_n, float* scratch) {
    first = next_first;
    n = next_n;
    x = scratch;
    scan = {};
  }
  template <bool keep_nan>
  CGX_INLINE void step(uint32_t e) {
    if (e >= n) return;
    const Block<V> block = source.get(first + e);
    const Block<V> kept = keep_nan ? canonical_nan(block) : block;
    store_block<V>(x + e, kept);
    scan.add(kept);
  }
};

template <class V, class Codec>
struct Vector {
  using Reference = Scalar<Codec>;
  using Decoding = VectorDecoding<V, typename Codec::Decoding>;
  using Meta = typename Codec::Meta;
  using Scan = typename Codec::template Scan<V>;
  using Coder = typename Codec::template Coder<V>;
  using Valuer = typename Codec::template Valuer<V>;

  static uint64_t encode(const EncodeJob& job, const Tuning& tuning, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const Residual residual(job, tuning.feedback);
    const Access& access = job.source.residual_in ? tuning.feedback : tuning.encode;
    if (is_plain(job.source)) {
      const Direct<V> source(job.source, job.elements, access);
      encode_from<false>(job, source, access, residual, stats);
    } else {
      const Source<V> source(job.source, job.elements, access);
      encode_from<Codec::kKeepsNan>(job, source, access, residual, stats);
    }
    Reference::pad(range, bytes_of(job));
    if (residual.stream) V::stream_fence();
    return range.padded_end();
  }

  static uint64_t reduce(const ReduceJob& job, const Tuning& tuning, RangeStats& stats,
                         uint64_t* used) {
    if constexpr (kEachAlone) {
      if (is_bare(job)) return VectorAlone<V, Codec>::reduce(job, tuning, stats, used);
    }
    return VectorReduce<V, Codec>::reduce(job, tuning, stats, used);
  }

  static constexpr CodecOps kOps = {encode, Decoding::decode, reduce, Decoding::combine,
                                    Decoding::decode_add};

 private:
  static constexpr bool kEachAlone = requires { Codec::kEachAlone; };
  // Codes are wanted, and results, and nothing about what they lose.
  template <class Job>
  static bool is_bare(const Job& job) {
    return job.residual_out == nullptr && !job.norms;
  }

  // While bucket b is coded, bucket b + 1 is scanned, block by block: the divisions of the metadata
  // and the latency of memory hide behind the other's work.
  template <bool keep_nan, class From>
  static void encode_from(const EncodeJob& job, const From& source, const Access& access,
                          const Residual& residual, RangeStats& stats) {
    if constexpr (kEachAlone) {
      if (is_bare(job)) {
        return VectorAlone<V, Codec>::template encode<keep_nan>(job, source, access, stats);
      }
    }
    const Range<Codec> range(job.spec, job.elements);
    const bool ragged = job.elements % kBlock != 0;
    const uint64_t buckets = range.buckets() - ragged;
    alignas(64) float scratch[2][kBucketMax];
    Incoming<V, Scan, From> incoming{source, scratch[0]};
    const auto start = [&](uint64_t b) {
      incoming.start(range.first(b), b < buckets ? range.count(b) : 0, scratch[b % 2]);
    };
    start(0);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < kBucketMax; e += kBlock) incoming.template step<keep_nan>(e);
    for (uint64_t b = 0; b < buckets; ++b) {
      const float* x = incoming.x;
      const uint32_t n = incoming.n;
      const auto extent = incoming.scan.extent();
      Meta meta = Codec::fit(extent, n, kInfBits);
      start(b + 1);
      encode_bucket<keep_nan>(job, range, b, x, n, meta, residual, incoming, stats);
      if (job.norms) [[unlikely]] {
        add_norms(job, range, b, x, Codec::max_abs(extent), meta, stats);
      }
    }
    if (ragged) Reference::encode_bucket(job, buckets, stats);
  }

  template <bool keep_nan, class Next>
  static CGX_INLINE void encode_bucket(const EncodeJob& job, const Range<Codec>& range, uint64_t b,
                                       const float* x, uint32_t n, Meta& meta,
                                       const Residual& errors, Next& next, RangeStats& stats) {
    if (meta.special || (meta.nonfinite && !Codec::kKeepsNan)) [[unlikely]] {
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock) next.template step<keep_nan>(e);
      return Reference::encode_bucket(job, b, stats);
    }
    const uint64_t first = range.first(b);
    float* residual = errors.at(first);
    Codec::put_meta(meta, bytes_of(job) + range.meta(b));
    Coder coder(meta, bucket_key(job.key.stream, job.key.first_bucket + b));
    if constexpr (requires { coder.prepare(x, n); }) coder.prepare(x, n);
    const Valuer valuer(meta);
    uint8_t* block = bytes_of(job) + range.codes(b);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, block += Codec::kBlockBytes) {
      next.template step<keep_nan>(e);
      const Block<V> value = load_block<V>(x + e);
      coder.put(value, block);
      if (residual) store_as<V>(residual + e, value - valuer.get(block), errors.stream);
    }
    coder.finish(stats);
    stats.nonfinite_buckets += meta.nonfinite;
    if (residual && meta.nonfinite) {
      const RawView& source = job.source;
      keep_residual(source.residual_in, source.residual_scale, job.residual_out, first, n);
    }
  }

  // A pass of its own over the cached bucket: norms are asked for now and then only.
  [[gnu::noinline]] static void add_norms(const EncodeJob& job, const Range<Codec>& range,
                                          uint64_t b, const float* x, uint32_t max_abs,
                                          const Meta& meta, RangeStats& stats) {
    if (meta.nonfinite || meta.special) return;  // the scalar skeleton did it
    const float scale = square_scale(max_abs);
    SquareSum<V> intended(scale), sent(scale);
    const Valuer valuer(meta);
    const uint8_t* block = bytes_of(job) + range.codes(b);
    for (uint32_t e = 0; e < range.count(b); e += kBlock, block += Codec::kBlockBytes) {
      intended.add(load_block<V>(x + e));
      sent.add(valuer.get(block));
    }
    stats.intended_sq += unscaled_square(intended.total(), scale);
    stats.sent_sq += unscaled_square(sent.total(), scale);
  }
};

// result = cast(sum of ranks * scale + residual), to every target.
template <class V>
void vector_local_reduce(const LocalReduceJob& job, const Tuning& tuning) {
  const Source<V> source(job.source, job.elements, tuning.local_reduce);
  const Targets<V> targets(job.targets, job.target_count, job.source.dtype, false);
  const bool keep_bits = is_plain(job.source);
  const uint32_t unit = local_unit(job);
  for (uint64_t first = 0; first < job.elements; first += unit) {
    const uint64_t left = job.elements - first;
    const uint32_t n = left < unit ? static_cast<uint32_t>(left) : unit;
    if (n % kBlock != 0 || keep_bits || job.residual_out) {
      local_reduce_values(job, first, n);
      continue;
    }
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) {
      targets.store(first + e, canonical_nan(source.get(first + e)));
    }
  }
}

}  // namespace
}  // namespace cgx::kernels
