// The vector skeleton of reduce: several machines' parts to one encoded sum.
//
// One loop goes over two buckets, both in the first-level cache: while one is coded, and results
// are decoded from the codes just written, the parts of the next are added and their sum is
// scanned. So nothing waits for the divisions between scan and coding, nor for memory.
#pragma once

#include "kernels/lanes/vector_decode.h"

namespace cgx::kernels {
namespace {

// Where the errors of an encoding go, if they are kept.
struct Residual {
  template <class Job>
  CGX_INLINE Residual(const Job& job, const Access& access)
      : to(job.residual_out),
        stream(to != nullptr && is_line(to) && streams(access, job.elements)) {}
  CGX_INLINE float* at(uint64_t first) const { return to ? to + first : nullptr; }

  float* to;
  bool stream;
};

// A bucket's sum on its way in: parts are added from +0.0 in their order, a few in one pass.
template <class V, class Codec>
class IncomingSum {
 public:
  using Decoding = VectorDecoding<V, typename Codec::Decoding>;
  using Layout = Range<typename Codec::Decoding>;
  using Scan = typename Codec::template Scan<V>;

  CGX_INLINE IncomingSum(const ReduceJob& job, const Tuning& tuning)
      : job_(job),
        access_(tuning.reduce),
        layout_(job.spec, job.elements),
        limit_(overflow_bits(job.dtype)),
        own_(own_of(job)),
        source_(own_ ? own_->raw : none_, job.elements, tuning.reduce) {}

  // n: whole blocks. False: the metadata of a part is corrupt, and nothing comes in.
  CGX_INLINE bool start(uint64_t b, uint32_t n, float* sum) {
    x = sum;
    elements = 0;
    raw_ = false;
    count_ = 0;
    empty_ = true;
    first_ = layout_.first(b);
    if (n == 0) return true;
    if constexpr (is_vote<Codec>()) {
      empty_ = false;
      if (!add_votes_of(b, n)) return false;
    } else if (own_ == nullptr) {
      empty_ = false;  // without a value from memory two tight passes are faster than one for all
      if (!Decoding::add_encoded(job_.contributions, layout_, b, x)) return false;
    } else {
      for (const Contribution& part : job_.contributions) {
        if (part.kind == Contribution::Kind::kAbsent) continue;
        if (part.kind == Contribution::Kind::kRaw) {
          wait_raw(part, n);
        } else if (!wait(bytes_of(part), b, n)) {
          return false;
        }
      }
    }
    elements = n;
    return true;
  }

  // `scan` goes through all of a bucket's blocks; a local one stays in registers.
  CGX_INLINE void step(uint32_t e, Scan& scan) {
    if (e >= elements) return;
    const Block<V> sum = finished(e);
    store_block<V>(x + e, sum);
    scan.add(sum);
  }
  CGX_INLINE Block<V> finished(uint32_t e) const {
    const Block<V> sum = canonical_nan(sum_of(e));
    if (limit_ == kInfBits) return sum;
    return map(sum, [&](auto v) { return overflow_to_infinity<V>(v, limit_); });
  }

  float* x = nullptr;
  uint32_t elements = 0;

 private:
  using Valuer = typename Codec::Decoding::template Valuer<V>;
  using Meta = typename Codec::Decoding::Meta;
  static constexpr uint32_t kBlockBytes = Codec::kBlockBytes;

  // An encoded part.
  struct Addend {
    const uint8_t* codes;
    Valuer valuer{Meta()};
    CGX_INLINE Block<V> get(uint32_t e) const {
      return valuer.get(codes + e / kBlock * kBlockBytes);
    }
  };

  static const Contribution* own_of(const ReduceJob& job) {
    for (const Contribution& part : job.contributions) {
      if (part.kind == Contribution::Kind::kRaw) return &part;
    }
    return nullptr;
  }

  // One pass adds a raw part and then up to two encoded ones. Nothing and two parts are as good the
  // other way round: addition commutes, and a sum that began with +0.0 is never -0.0.
  CGX_INLINE void wait_raw(const Contribution& part, uint32_t n) {
    if (raw_ || count_ > (empty_ ? 1 : 0)) add_waiting(n);
    if (&part == own_) {
      raw_ = true;
    } else {
      add_waiting(n);
      add_raw<V>(part.raw, access_, job_.elements, first_, n, empty_, x);
      empty_ = false;
    }
  }

  CGX_INLINE bool wait(const uint8_t* bytes, uint64_t b, uint32_t n) {
    if (count_ == 2) add_waiting(n);
    Meta meta;
    if (!Codec::Decoding::get_meta(bytes + layout_.meta(b), meta)) return false;
    Addend& part = count_++ == 0 ? one_ : two_;
    part.valuer = Valuer(meta);
    part.codes = bytes + layout_.codes(b);
    return true;
  }

  CGX_INLINE Block<V> sum_of(uint32_t e) const {
    Block<V> sum = empty_ ? splat_block<V>(0.0f) : load_block<V>(x + e);
    if (raw_) sum = sum + source_.get(first_ + e);
    if (count_ > 0) sum = sum + one_.get(e);
    if (count_ > 1) sum = sum + two_.get(e);
    return sum;
  }

  [[gnu::noinline]] void add_waiting(uint32_t n) {
    if (!raw_ && count_ == 0) return;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) store_block<V>(x + e, sum_of(e));
    raw_ = false;
    count_ = 0;
    empty_ = false;
  }

  bool add_votes_of(uint64_t b, uint32_t n) {
    bool is_first = true;
    float weight = 0;
    for (const Contribution& part : job_.contributions) {
      if (part.kind == Contribution::Kind::kAbsent) continue;
      if (part.kind == Contribution::Kind::kRaw) {
        if (has_no_vote(part.raw)) continue;
        weight += add_raw_votes(part.raw, n, is_first);
      } else if (!Decoding::add_encoded_votes(bytes_of(part), layout_, b, is_first, x, weight)) {
        return false;
      }
      is_first = false;
    }
    if (is_first) std::memset(x, 0, n * sizeof(float));
    count_block_votes<V>(x, n, weight);
    return true;
  }

  // The own part's votes; returns its scale. Nothing is added to its values: a negative zero votes.
  float add_raw_votes(const RawView& view, uint32_t n, bool is_first) {
    alignas(64) float values[kBucketMax];
    const Source<V> source(view, job_.elements, access_);
    Scan votes;
    for (uint32_t e = 0; e < n; e += kBlock) {
      const Block<V> block = canonical_nan(source.get(first_ + e));
      votes.add(block);
      store_block<V>(values + e, block);
    }
    const auto extent = votes.extent();
    const auto meta = Codec::fit(extent, n, kInfBits);
    if (is_first) std::memset(x, 0, n * sizeof(float));
    add_votes(values, n, x);
    return meta.special ? Codec::fit(Codec::extent_of(values, n), n, kInfBits).scale()
                        : meta.scale();
  }

  const ReduceJob& job_;
  const Access& access_;
  const Layout layout_;
  const uint32_t limit_;
  const RawView none_;
  const Contribution* const own_;  // the first that is raw: the others are added on their own
  const Source<V> source_;
  uint64_t first_ = 0;
  bool empty_ = true;   // x holds nothing yet
  bool raw_ = false;    // the own part waits to be added
  uint32_t count_ = 0;  // so many encoded ones do
  Addend one_, two_;
};

template <class V, class Codec>
struct VectorReduce {
  using Reference = Scalar<Codec>;
  using Decoding = VectorDecoding<V, typename Codec::Decoding>;
  using Meta = typename Codec::Meta;
  using Coder = typename Codec::template Coder<V>;
  using Incoming = IncomingSum<V, Codec>;
  using Scan = typename Incoming::Scan;

  static uint64_t reduce(const ReduceJob& job, const Tuning& tuning, RangeStats& stats,
                         uint64_t* used) {
    const Range<Codec> range(job.spec, job.elements);
    *used = range.padded_end();
    const Targets<V> targets(job.targets, job.target_count, job.dtype, false);
    const Residual residual(job, tuning.feedback);
    const bool ragged = job.elements % kBlock != 0;
    const uint64_t buckets = range.buckets() - ragged;
    alignas(64) float scratch[2][kBucketMax];
    Incoming incoming(job, tuning);
    const auto start = [&](uint64_t b) {
      return incoming.start(b, b < buckets ? range.count(b) : 0, scratch[b % 2]);
    };
    bool good = start(0);
    Scan scan = scan_all(incoming);
    for (uint64_t b = 0; b < buckets; ++b) {
      if (!good) return b;
      const float* sum = incoming.x;
      const uint32_t n = incoming.elements;
      const auto extent = scan.extent();
      Meta meta = Codec::fit(extent, n, overflow_bits(job.dtype));
      good = start(b + 1);
      if (meta.special) [[unlikely]] {
        scan = scan_all(incoming);
        if (!Reference::reduce_bucket(job, b, stats)) return b;
      } else {
        const bool coded = Codec::kKeepsNan || !meta.nonfinite;
        const bool direct = coded && job.residual_out == nullptr && !job.norms;
        scan = put_codes(job, range, b, sum, n, meta, incoming, direct ? &targets : nullptr, stats);
        if (direct) continue;
        put_result(job, range, b, sum, n, Codec::max_abs(extent), meta, targets, residual, stats);
      }
    }
    if (!good || (ragged && !Reference::reduce_bucket(job, buckets, stats))) return buckets;
    Reference::pad(range, bytes_of(job));
    if (residual.stream) V::stream_fence();
    return kNoBucket;
  }

 private:
  // All of the bucket that comes in, with nothing beside it.
  [[gnu::noinline]] static Scan scan_all(Incoming& incoming) {
    Scan scan;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < incoming.elements; e += kBlock) incoming.step(e, scan);
    return scan;
  }

  // The own bytes of bucket b and, where there are targets, the results that these decode to, while
  // the sum of the next bucket comes in.
  static CGX_INLINE Scan put_codes(const ReduceJob& job, const Range<Codec>& range, uint64_t b,
                                   const float* sum, uint32_t n, Meta& meta, Incoming& incoming,
                                   const Targets<V>* targets, RangeStats& stats) {
    uint8_t* codes = bytes_of(job) + range.codes(b);
    const uint64_t key = bucket_key(job.key.stream, job.key.first_bucket + b);
    Codec::put_meta(meta, bytes_of(job) + range.meta(b));
    stats.nonfinite_buckets += meta.nonfinite;
    if (!Codec::kKeepsNan && meta.nonfinite) [[unlikely]] {
      Codec::code(sum, n, meta, key, codes, stats);
      return scan_all(incoming);
    }
    Scan next;
    Coder coder(meta, key);
    if constexpr (requires { coder.prepare(sum, n); }) coder.prepare(sum, n);
    const typename Codec::template Valuer<V> valuer(meta);
    const uint64_t first = range.first(b);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock, codes += Codec::kBlockBytes) {
      incoming.step(e, next);
      coder.put(load_block<V>(sum + e), codes);
      if (targets) targets->store(first + e, valuer.get(codes));
    }
    coder.finish(stats);
    return next;
  }

  // What the own bytes decode to: residual and local results.
  static CGX_INLINE void put_result(const ReduceJob& job, const Range<Codec>& range, uint64_t b,
                                    const float* sum, uint32_t n, uint32_t max_abs,
                                    const Meta& meta, const Targets<V>& targets,
                                    const Residual& errors, RangeStats& stats) {
    const bool norms = job.norms && !meta.nonfinite;
    if (job.target_count == 0 && job.residual_out == nullptr && !norms) return;
    const uint64_t first = range.first(b);
    float* residual = errors.at(first);
    const float scale = square_scale(max_abs);
    SquareSum<V> sent(scale);
    Decoding::put_values(bytes_of(job) + range.codes(b), n, meta, first, targets,
                         {sum, residual, errors.stream, norms ? &sent : nullptr});
    if (norms) {
      stats.intended_sq += unscaled_square(square_sum(sum, n, scale), scale);
      stats.sent_sq += unscaled_square(sent.total(), scale);
    }
    if (residual && meta.nonfinite) {
      keep_residual(job.residual_in, job.residual_scale, job.residual_out, first, n);
    }
  }

  [[gnu::noinline]] static float square_sum(const float* x, uint32_t n, float scale) {
    SquareSum<V> sum(scale);
    for (uint32_t e = 0; e < n; e += kBlock) sum.add(load_block<V>(x + e));
    return sum.total();
  }
};

}  // namespace
}  // namespace cgx::kernels
