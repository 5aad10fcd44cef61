// The scalar skeletons: every operation of a codec on one bucket, one value after the other.
//
// This is the reference that the other lanes are compared with, and what they themselves use for
// short and special buckets. A codec supplies extent_of, fit, put_meta, get_meta, code, value,
// nonfinite (codecs/casts.h is the smallest example). Each bucket is read completely before
// anything of it is written.
#pragma once

#include <cstring>

#include "kernels/draw.h"
#include "kernels/floats.h"
#include "kernels/lanes/votes.h"
#include "kernels/ops.h"
#include "kernels/range.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

inline uint8_t* bytes_of(const EncodeJob& job) {
  return reinterpret_cast<uint8_t*>(job.encoded.data());
}
inline uint8_t* bytes_of(const ReduceJob& job) {
  return reinterpret_cast<uint8_t*>(job.encoded.data());
}
template <class Job>
const uint8_t* bytes_of(const Job& job) {
  return reinterpret_cast<const uint8_t*>(job.encoded.data());
}

// x := what the view contributes to values first .. first + n. A NaN that arithmetic touched
// becomes the canonical one; a single fp32 rank without arithmetic keeps its bits.
inline void load_sum(const RawView& view, uint64_t first, uint32_t n, float* x) {
  const float scale = static_cast<float>(view.scale);
  if (view.rank_count == 1 && scale == 1.0f && view.residual_in == nullptr) {
    // Apart from the loop below: to a compiler 1.0f * x is x, whatever that does to a NaN's bits.
    for (uint32_t e = 0; e < n; ++e) x[e] = load_element(view.ranks[0], view.dtype, first + e);
    return;
  }
  for (uint32_t e = 0; e < n; ++e) {
    float sum = view.rank_count == 0 ? 0.0f : load_element(view.ranks[0], view.dtype, first + e);
    for (uint32_t r = 1; r < view.rank_count; ++r) {
      sum += load_element(view.ranks[r], view.dtype, first + e);
    }
    if (scale != 1.0f) sum *= scale;
    if (view.residual_in != nullptr) sum += view.residual_in[first + e] * view.residual_scale;
    x[e] = canonical_nan(sum);
  }
}

// Non-finite buckets keep their old residual, in today's units.
inline void keep_residual(const float* in, float scale, float* out, uint64_t first, uint32_t n) {
  if (in == nullptr) {
    std::memset(out + first, 0, n * sizeof(float));
  } else {
    for (uint32_t e = 0; e < n; ++e) out[first + e] = rescaled(in[first + e], scale);
  }
}

// The error of an encoding; saturates where huge values are coded badly, so never infinite.
inline float residual_of(float x, float value) {
  return saturated(x - value);
}

[[gnu::noinline]] inline void put_errors(const float* x, const float* value, uint32_t n,
                                         float* residual) {
  for (uint32_t e = 0; e < n; ++e) residual[e] = residual_of(x[e], value[e]);
}

// A reduced value that the tensor's dtype cannot hold counts as infinite.
inline float overflow_to_infinity(float x, uint32_t limit) {
  if (abs_bits(x) < limit || is_nan(x)) return x;
  return float_of((bits_of(x) & kSignBit) | kInfBits);
}

template <class Codec>
struct Scalar {
  using Meta = typename Codec::Meta;

  [[gnu::noinline]] static void encode_bucket(const EncodeJob& job, uint64_t b, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    float x[kBucketMax], sent[kBucketMax];
    load_sum(job.source, first, n, x);
    const Meta meta = put(x, n, kInfBits, job.key, b, range, bytes_of(job), stats);
    if (job.residual_out == nullptr && !job.norms) return;
    Codec::value(bytes_of(job) + range.codes(b), n, meta, sent);
    if (job.norms && !meta.nonfinite) add_norms(x, sent, n, stats);
    if (job.residual_out == nullptr) return;
    if (meta.nonfinite) {
      const RawView& source = job.source;
      return keep_residual(source.residual_in, source.residual_scale, job.residual_out, first, n);
    }
    put_errors(x, sent, n, job.residual_out + first);
  }

  [[gnu::noinline]] static bool decode_bucket(const DecodeJob& job, uint64_t b, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint32_t n = range.count(b);
    float x[kBucketMax];
    Meta meta;
    if (!get(bytes_of(job), range, b, meta, x)) return false;
    finish_result(job, range.first(b), n, x,
                  Codec::nonfinite(meta, Codec::extent_of(x, n), overflow_bits(job.dtype)), stats);
    return true;
  }

  [[gnu::noinline]] static bool combine_bucket(const CombineJob& job, uint64_t b,
                                               RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint32_t n = range.count(b);
    const uint32_t limit = overflow_bits(job.dtype);
    float sum[kBucketMax];
    if (!add_contributions(job.contributions, range, b, limit, sum)) return false;
    const bool nonfinite = max_abs_bits(sum, n) >= limit;
    if (nonfinite && !Codec::kKeepsNan) {
      for (uint32_t e = 0; e < n; ++e) sum[e] = float_of(kNanBits);
    }
    finish_result(job, range.first(b), n, sum, nonfinite, stats);
    return true;
  }

  [[gnu::noinline]] static bool reduce_bucket(const ReduceJob& job, uint64_t b, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    const uint32_t limit = overflow_bits(job.dtype);
    float sum[kBucketMax], x[kBucketMax];
    if (!add_contributions(job.contributions, range, b, limit, sum)) return false;
    const Meta meta = put(sum, n, limit, job.key, b, range, bytes_of(job), stats);
    Codec::value(bytes_of(job) + range.codes(b), n, meta, x);
    if (job.norms && !meta.nonfinite) add_norms(sum, x, n, stats);
    if (job.residual_out && meta.nonfinite) {
      keep_residual(job.residual_in, job.residual_scale, job.residual_out, first, n);
    } else if (job.residual_out) {
      put_errors(sum, x, n, job.residual_out + first);
    }
    store(job.targets, job.target_count, job.dtype, first, n, x);
    return true;
  }

  [[gnu::noinline]] static bool decode_add_bucket(const DecodeAddJob& job, uint64_t b,
                                                  RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint32_t n = range.count(b);
    float x[kBucketMax];
    Meta meta;
    if (!get(bytes_of(job), range, b, meta, x)) return false;
    stats.nonfinite_buckets += Codec::nonfinite(meta, Codec::extent_of(x, n), kInfBits);
    float* sum = job.sum + range.first(b);
    for (uint32_t e = 0; e < n; ++e) sum[e] = canonical_nan(sum[e] + x[e]);
    return true;
  }

  static void pad(const Range<Codec>& range, uint8_t* bytes) {
    for (uint64_t i = range.end(); i < range.padded_end(); ++i) bytes[i] = 0;
  }

  static uint64_t encode(const EncodeJob& job, const Tuning&, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    for (uint64_t b = 0; b < range.buckets(); ++b) encode_bucket(job, b, stats);
    pad(range, bytes_of(job));
    return range.padded_end();
  }

  template <class Job>
  static uint64_t for_each_bucket(const Job& job, RangeStats& stats,
                                  bool (*bucket)(const Job&, uint64_t, RangeStats&)) {
    const Range<Codec> range(job.spec, job.elements);
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      if (!bucket(job, b, stats)) return b;
    }
    return kNoBucket;
  }

  static uint64_t decode(const DecodeJob& job, const Tuning&, RangeStats& stats) {
    return for_each_bucket(job, stats, decode_bucket);
  }
  static uint64_t reduce(const ReduceJob& job, const Tuning&, RangeStats& stats, uint64_t* used) {
    const Range<Codec> range(job.spec, job.elements);
    pad(range, bytes_of(job));
    *used = range.padded_end();
    return for_each_bucket(job, stats, reduce_bucket);
  }
  static uint64_t combine(const CombineJob& job, const Tuning&, RangeStats& stats) {
    return for_each_bucket(job, stats, combine_bucket);
  }
  static uint64_t decode_add(const DecodeAddJob& job, const Tuning&, RangeStats& stats) {
    return for_each_bucket(job, stats, decode_add_bucket);
  }

  static constexpr CodecOps kOps = {encode, decode, reduce, combine, decode_add};

 private:
  static Meta put(const float* x, uint32_t n, uint32_t limit, const DrawKey& key, uint64_t b,
                  const Range<Codec>& range, uint8_t* bytes, RangeStats& stats) {
    Meta meta = Codec::fit(Codec::extent_of(x, n), n, limit);
    stats.nonfinite_buckets += meta.nonfinite;
    Codec::put_meta(meta, bytes + range.meta(b));
    Codec::code(x, n, meta, bucket_key(key.stream, key.first_bucket + b), bytes + range.codes(b),
                stats);
    return meta;
  }

  static bool get(const uint8_t* bytes, const Range<Codec>& range, uint64_t b, Meta& meta,
                  float* x) {
    if (!Codec::get_meta(bytes + range.meta(b), meta)) return false;
    Codec::value(bytes + range.codes(b), range.count(b), meta, x);
    return true;
  }

  // The sum of the present parts, in order from +0.0; what the receiver's dtype cannot hold is
  // infinite in it. False if a part is corrupt.
  static bool add_contributions(std::span<const Contribution> parts, const Range<Codec>& range,
                                uint64_t b, uint32_t limit, float* sum) {
    const uint32_t n = range.count(b);
    float x[kBucketMax], weight = 0;
    std::memset(sum, 0, n * sizeof(float));
    for (const Contribution& part : parts) {
      if (part.kind == Contribution::Kind::kAbsent) continue;
      if constexpr (is_vote<Codec>()) {
        if (part.kind == Contribution::Kind::kRaw && has_no_vote(part.raw)) continue;
      }
      Meta meta;
      if (!load_contribution(part, range, b, meta, x)) return false;
      if constexpr (is_vote<Codec>()) {
        add_votes(x, n, sum);
        weight += meta.scale();
      } else {
        for (uint32_t e = 0; e < n; ++e) sum[e] += x[e];
      }
    }
    if constexpr (is_vote<Codec>()) count_votes(sum, n, weight);
    for (uint32_t e = 0; e < n; ++e) sum[e] = overflow_to_infinity(canonical_nan(sum[e]), limit);
    return true;
  }

  static bool load_contribution(const Contribution& part, const Range<Codec>& range, uint64_t b,
                                Meta& meta, float* x) {
    const uint32_t n = range.count(b);
    if (part.kind == Contribution::Kind::kEncoded) {
      if (!get(bytes_of(part), range, b, meta, x)) return false;
      if constexpr (is_vote<Codec>()) {
        Codec::value(bytes_of(part) + range.codes(b), n, ballot<Meta>(), x);
      }
      return true;
    }
    load_sum(part.raw, range.first(b), n, x);
    if constexpr (is_vote<Codec>()) meta = Codec::fit(Codec::extent_of(x, n), n, kInfBits);
    return true;
  }

  static void add_norms(const float* x, const float* sent, uint32_t n, RangeStats& stats) {
    const float scale = square_scale(max_abs_bits(x, n));
    stats.intended_sq += squared_norm(x, n, scale);
    stats.sent_sq += squared_norm(sent, n, scale);
  }

  // Values that every machine decoded alike: to the targets, and what they mean for the residual.
  template <class Job>
  static void finish_result(const Job& job, uint64_t first, uint32_t n, const float* x,
                            bool nonfinite, RangeStats& stats) {
    stats.nonfinite_buckets += nonfinite;
    if (nonfinite && job.residual_out) {
      keep_residual(job.residual_in, job.residual_scale, job.residual_out, first, n);
    }
    store(job.targets, job.target_count, job.dtype, first, n, x);
  }

  static void store(void* const* targets, uint32_t target_count, DType dtype, uint64_t first,
                    uint32_t n, const float* x) {
    for (uint32_t t = 0; t < target_count; ++t) {
      for (uint32_t e = 0; e < n; ++e) store_element(targets[t], dtype, first + e, x[e]);
    }
  }
};

// result = cast(sum + residual) for `n` values from `first`.
[[gnu::noinline]] inline void local_reduce_values(const LocalReduceJob& job, uint64_t first,
                                                  uint32_t n) {
  const DType dtype = job.source.dtype;
  float x[kBucketMax];
  load_sum(job.source, first, n, x);
  bool nonfinite = false;
  for (uint32_t e = 0; e < n; ++e) nonfinite |= abs_bits(x[e]) >= overflow_bits(dtype);
  if (job.residual_out) {
    keep_residual(nonfinite ? job.source.residual_in : nullptr, job.source.residual_scale,
                  job.residual_out, first, n);
  }
  for (uint32_t t = 0; t < job.target_count; ++t) {
    for (uint32_t e = 0; e < n; ++e) store_element(job.targets[t], dtype, first + e, x[e]);
  }
}

// What is reduced at a time.
inline uint32_t local_unit(const LocalReduceJob& job) {
  return job.bucket < kBucketMax ? job.bucket : kBucketMax;
}

inline void scalar_local_reduce(const LocalReduceJob& job) {
  const uint32_t unit = local_unit(job);
  for (uint64_t first = 0; first < job.elements; first += unit) {
    const uint64_t left = job.elements - first;
    local_reduce_values(job, first, left < unit ? static_cast<uint32_t>(left) : unit);
  }
}

}  // namespace
}  // namespace cgx::kernels
