// The scalar skeletons: every operation of a codec on one bucket, one value after the other.
//
// This is the reference that the other lanes are compared with, and what they themselves use for
// short and special buckets. A codec supplies extent_of, fit, put_meta, get_meta,
// code, value, nonfinite (casts.h is the smallest example). Each bucket is read completely before
// anything of it is written.
#pragma once

#include <cstring>

#include "kernels/draw.h"
#include "kernels/floats.h"
#include "kernels/ops.h"
#include "kernels/range.h"

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
  const bool untouched = view.rank_count == 1 && scale == 1.0f && view.residual_in == nullptr;
  for (uint32_t e = 0; e < n; ++e) {
    float sum = view.rank_count == 0 ? 0.0f : load_element(view.ranks[0], view.dtype, first + e);
    for (uint32_t r = 1; r < view.rank_count; ++r) {
      sum += load_element(view.ranks[r], view.dtype, first + e);
    }
    if (scale != 1.0f) sum *= scale;
    if (view.residual_in != nullptr) sum += view.residual_in[first + e];
    x[e] = untouched ? sum : canonical_nan(sum);
  }
}

// Non-finite buckets keep their old residual.
inline void keep_residual(const float* in, float* out, uint64_t first, uint32_t n) {
  if (in != nullptr) {
    std::memmove(out + first, in + first, n * sizeof(float));
  } else {
    std::memset(out + first, 0, n * sizeof(float));
  }
}

// The error of an encoding; saturates where huge values are coded badly, so never infinite.
inline float residual_of(float x, float value) {
  const float error = x - value;
  return abs_bits(error) < kInfBits ? error : bits_of(error) & kSignBit ? -kFloatMax : kFloatMax;
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
    if (job.residual_out == nullptr) return;
    if (meta.nonfinite) return keep_residual(job.source.residual_in, job.residual_out, first, n);
    Codec::value(bytes_of(job) + range.codes(b), n, meta, sent);
    for (uint32_t e = 0; e < n; ++e) job.residual_out[first + e] = residual_of(x[e], sent[e]);
  }

  [[gnu::noinline]] static bool decode_bucket(const DecodeJob& job, uint64_t b, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    float x[kBucketMax];
    Meta meta;
    if (!get(bytes_of(job), range, b, meta, x)) return false;
    if (Codec::nonfinite(meta, Codec::extent_of(x, n), overflow_bits(job.dtype))) {
      ++stats.nonfinite_buckets;
      if (job.residual_out) keep_residual(job.residual_in, job.residual_out, first, n);
    }
    store(job.targets, job.target_count, job.dtype, first, n, x);
    return true;
  }

  [[gnu::noinline]] static bool reduce_bucket(const ReduceJob& job, uint64_t b, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    const uint64_t first = range.first(b);
    const uint32_t n = range.count(b);
    const uint32_t limit = overflow_bits(job.dtype);
    float sum[kBucketMax], x[kBucketMax];
    std::memset(sum, 0, n * sizeof(float));
    for (const Contribution& part : job.contributions) {
      if (!load_contribution(part, range, b, x)) return false;
      if (part.kind == Contribution::Kind::kAbsent) continue;
      for (uint32_t e = 0; e < n; ++e) sum[e] += x[e];
    }
    for (uint32_t e = 0; e < n; ++e) sum[e] = overflow_to_infinity(canonical_nan(sum[e]), limit);
    const Meta meta = put(sum, n, limit, job.key, b, range, bytes_of(job), stats);
    Codec::value(bytes_of(job) + range.codes(b), n, meta, x);
    if (job.residual_out && meta.nonfinite) {
      keep_residual(job.residual_in, job.residual_out, first, n);
    } else if (job.residual_out) {
      for (uint32_t e = 0; e < n; ++e) job.residual_out[first + e] = residual_of(sum[e], x[e]);
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

  static void encode(const EncodeJob& job, RangeStats& stats) {
    const Range<Codec> range(job.spec, job.elements);
    for (uint64_t b = 0; b < range.buckets(); ++b) encode_bucket(job, b, stats);
    pad(range, bytes_of(job));
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

  static uint64_t decode(const DecodeJob& job, RangeStats& stats) {
    return for_each_bucket(job, stats, decode_bucket);
  }
  static uint64_t reduce(const ReduceJob& job, RangeStats& stats) {
    pad(Range<Codec>(job.spec, job.elements), bytes_of(job));
    return for_each_bucket(job, stats, reduce_bucket);
  }
  static uint64_t decode_add(const DecodeAddJob& job, RangeStats& stats) {
    return for_each_bucket(job, stats, decode_add_bucket);
  }

  static constexpr CodecOps kOps = {encode, decode, reduce, decode_add};

 private:
  static Meta put(const float* x, uint32_t n, uint32_t limit, const DrawKey& key, uint64_t b,
                  const Range<Codec>& range, uint8_t* bytes, RangeStats& stats) {
    const Meta meta = Codec::fit(Codec::extent_of(x, n), limit);
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

  static bool load_contribution(const Contribution& part, const Range<Codec>& range, uint64_t b,
                                float* x) {
    Meta meta;
    switch (part.kind) {
      case Contribution::Kind::kAbsent:
        return true;
      case Contribution::Kind::kRaw:
        load_sum(part.raw, range.first(b), range.count(b), x);
        return true;
      case Contribution::Kind::kEncoded:
        return get(bytes_of(part), range, b, meta, x);
    }
    return false;
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
    keep_residual(nonfinite ? job.source.residual_in : nullptr, job.residual_out, first, n);
  }
  for (uint32_t t = 0; t < job.target_count; ++t) {
    for (uint32_t e = 0; e < n; ++e) store_element(job.targets[t], dtype, first + e, x[e]);
  }
}

inline void scalar_local_reduce(const LocalReduceJob& job) {
  for (uint64_t first = 0; first < job.elements; first += job.bucket) {
    const uint64_t left = job.elements - first;
    local_reduce_values(job, first, left < job.bucket ? static_cast<uint32_t>(left) : job.bucket);
  }
}

}  // namespace
}  // namespace cgx::kernels
