// Codecs whose code of a value depends on that value alone (kEachAlone): one pass and no copy,
// where nothing else than codes and results is wanted. The same bits as the other skeletons.
//
// What is written is asked for ahead, as what is read is: a slab that was sent a few parts ago has
// left this core's cache, and a store that waits for its line holds up those behind it.
#pragma once

#include "kernels/lanes/vector_reduce.h"

namespace cgx::kernels {
namespace {

template <class V, class Codec>
struct VectorAlone {
  using Reference = Scalar<Codec>;
  using Coder = typename Codec::template Coder<V>;
  using Valuer = typename Codec::template Valuer<V>;
  using Scan = typename Codec::template Scan<V>;

  template <bool keep_nan, class From>
  static void encode(const EncodeJob& job, const From& source, const Access& access,
                     RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const bool ragged = job.elements % kBlock != 0;
    const uint64_t buckets = range.buckets() - ragged;
    const auto meta = Codec::fit(Codec::empty_extent(), 0, kInfBits);
    for (uint64_t b = 0; b < buckets; ++b) {
      const uint64_t first = range.first(b);
      const uint32_t n = range.count(b);
      uint8_t* codes = bytes_of(job) + range.codes(b);
      Coder coder(meta, 0);
      Scan scan;
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
        fetch_slab(access, codes);
        const Block<V> block = source.get(first + e);
        const Block<V> kept = keep_nan ? canonical_nan(block) : block;
        scan.add(kept);
        coder.put(kept, codes);
      }
      coder.finish(stats);
      stats.nonfinite_buckets += Codec::fit(scan.extent(), n, kInfBits).nonfinite;
    }
    if (ragged) Reference::encode_bucket(job, buckets, stats);
  }

  // REQUIRES: neither a residual nor norms are asked for.
  static uint64_t reduce(const ReduceJob& job, const Tuning& tuning, RangeStats& stats,
                         uint64_t* used) {
    const Range<Codec> range(job.spec, job.elements);
    *used = range.padded_end();
    const Targets<V> targets(job.targets, job.target_count, job.dtype, false);
    const bool ragged = job.elements % kBlock != 0;
    const uint64_t buckets = range.buckets() - ragged;
    const uint32_t limit = overflow_bits(job.dtype);
    const auto meta = Codec::fit(Codec::empty_extent(), 0, limit);
    const Valuer valuer(meta);
    alignas(64) float scratch[kBucketMax];
    IncomingSum<V, Codec> sum(job, tuning);
    for (uint64_t b = 0; b < buckets; ++b) {
      const uint64_t first = range.first(b);
      const uint32_t n = range.count(b);
      if (!sum.start(b, n, scratch)) return b;
      uint8_t* codes = bytes_of(job) + range.codes(b);
      Coder coder(meta, 0);
      Scan scan;
#pragma GCC unroll 1
      for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
        fetch_slab(tuning.reduce, codes);
        const Block<V> x = sum.finished(e);
        scan.add(x);
        coder.put(x, codes);
        targets.store(first + e, valuer.get(codes));
      }
      coder.finish(stats);
      stats.nonfinite_buckets += Codec::fit(scan.extent(), n, limit).nonfinite;
    }
    if (ragged && !Reference::reduce_bucket(job, buckets, stats)) return buckets;
    Reference::pad(range, bytes_of(job));
    return kNoBucket;
  }

 private:
  static constexpr uint32_t kSlabAhead = 2048;

  static CGX_INLINE void fetch_slab(const Access& access, const uint8_t* codes) {
    if (access.ahead_bytes == 0) return;
    for (uint32_t i = 0; i < Codec::kBlockBytes; i += 64) V::prefetch(codes + kSlabAhead + i);
  }
};

}  // namespace
}  // namespace cgx::kernels
