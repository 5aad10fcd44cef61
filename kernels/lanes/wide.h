// fp64 and integers: always raw. Plain loops over the element type, vectorized by the compiler.
//
// fp64 adds in fp64, integers wrap (they are added as unsigned). No residuals, no other codec.
#pragma once

#include <cstring>

#include "kernels/floats.h"
#include "kernels/lanes/scalar.h"
#include "kernels/ops.h"
#include "kernels/range.h"

namespace cgx::kernels {
namespace {

constexpr bool is_nonfinite(double x) {
  return (__builtin_bit_cast(uint64_t, x) & ~(1ull << 63)) >= 0x7ff0000000000000u;
}

template <class T>
struct Wide {
  static constexpr bool kFloat = T(0.5) != T(0);
  static constexpr uint32_t kMetaBytes = 0;
  static constexpr uint64_t code_bytes(uint64_t elements) { return sizeof(T) * elements; }
  using WideRange = Range<Wide>;

  static void load_sum(const RawView& view, uint64_t first, uint32_t n, T* x) {
    if (view.rank_count == 0) {
      std::memset(x, 0, n * sizeof(T));
      return;
    }
    std::memcpy(x, static_cast<const T*>(view.ranks[0]) + first, n * sizeof(T));
    for (uint32_t r = 1; r < view.rank_count; ++r) {
      add(static_cast<const T*>(view.ranks[r]) + first, n, x);
    }
    if constexpr (kFloat) {
      if (view.scale != 1.0) {
        for (uint32_t e = 0; e < n; ++e) x[e] *= view.scale;
      }
      if (view.rank_count > 1 || view.scale != 1.0) finish(x, n);
    }
  }

  static void add(const T* from, uint32_t n, T* x) {
    for (uint32_t e = 0; e < n; ++e) x[e] = static_cast<T>(x[e] + from[e]);
  }
  static void finish(T* x, uint32_t n) {
    if constexpr (kFloat) {
      for (uint32_t e = 0; e < n; ++e) x[e] = canonical_nan(x[e]);
    }
  }
  static void count(const T* x, uint32_t n, RangeStats& stats) {
    bool nonfinite = false;
    if constexpr (kFloat) {
      for (uint32_t e = 0; e < n; ++e) nonfinite |= is_nonfinite(x[e]);
    }
    stats.nonfinite_buckets += nonfinite;
  }
  static void store(void* const* targets, uint32_t target_count, uint64_t first, uint32_t n,
                    const T* x) {
    for (uint32_t t = 0; t < target_count; ++t) {
      std::memcpy(static_cast<T*>(targets[t]) + first, x, n * sizeof(T));
    }
  }
  static void pad(const WideRange& range, uint8_t* bytes) {
    for (uint64_t i = range.end(); i < range.padded_end(); ++i) bytes[i] = 0;
  }

  static uint64_t encode(const EncodeJob& job, const Tuning&, RangeStats& stats) {
    const WideRange range(job.spec, job.elements);
    T x[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      load_sum(job.source, range.first(b), range.count(b), x);
      count(x, range.count(b), stats);
      std::memcpy(bytes_of(job) + range.codes(b), x, range.count(b) * sizeof(T));
    }
    pad(range, bytes_of(job));
    return range.padded_end();
  }

  static uint64_t decode(const DecodeJob& job, const Tuning&, RangeStats& stats) {
    const WideRange range(job.spec, job.elements);
    T x[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      std::memcpy(x, bytes_of(job) + range.codes(b), range.count(b) * sizeof(T));
      count(x, range.count(b), stats);
      store(job.targets, job.target_count, range.first(b), range.count(b), x);
    }
    return kNoBucket;
  }

  static uint64_t reduce(const ReduceJob& job, const Tuning&, RangeStats& stats, uint64_t* used) {
    const WideRange range(job.spec, job.elements);
    T sum[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      const uint32_t n = range.count(b);
      add_up(job.contributions, range, b, sum, stats);
      std::memcpy(bytes_of(job) + range.codes(b), sum, n * sizeof(T));
      store(job.targets, job.target_count, range.first(b), n, sum);
    }
    pad(range, bytes_of(job));
    *used = range.padded_end();
    return kNoBucket;
  }

  static uint64_t combine(const CombineJob& job, const Tuning&, RangeStats& stats) {
    const WideRange range(job.spec, job.elements);
    T sum[kBucketMax];
    for (uint64_t b = 0; b < range.buckets(); ++b) {
      add_up(job.contributions, range, b, sum, stats);
      store(job.targets, job.target_count, range.first(b), range.count(b), sum);
    }
    return kNoBucket;
  }

  static void add_up(std::span<const Contribution> parts, const WideRange& range, uint64_t b,
                     T* sum, RangeStats& stats) {
    const uint32_t n = range.count(b);
    T x[kBucketMax];
    std::memset(sum, 0, n * sizeof(T));
    for (const Contribution& part : parts) {
      if (part.kind == Contribution::Kind::kAbsent) continue;
      if (part.kind == Contribution::Kind::kRaw) {
        load_sum(part.raw, range.first(b), n, x);
      } else {
        std::memcpy(x, bytes_of(part) + range.codes(b), n * sizeof(T));
      }
      add(x, n, sum);
    }
    finish(sum, n);
    count(sum, n, stats);
  }

  static uint64_t decode_add(const DecodeAddJob&, const Tuning&, RangeStats&) {
    return 0;
  }  // small floats only

  static void local_reduce(const LocalReduceJob& job) {
    T x[kBucketMax];
    const uint32_t unit = local_unit(job);
    for (uint64_t first = 0; first < job.elements; first += unit) {
      const uint64_t left = job.elements - first;
      const uint32_t n = left < unit ? static_cast<uint32_t>(left) : unit;
      load_sum(job.source, first, n, x);
      store(job.targets, job.target_count, first, n, x);
    }
  }

  static constexpr CodecOps kOps = {encode, decode, reduce, combine, decode_add};
};

// The instance for types that are not small floats; null for those that are.
inline const CodecOps* wide_codec(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return nullptr;
    case DType::kF64:
      return &Wide<double>::kOps;
    case DType::kI8:
    case DType::kU8:
      return &Wide<uint8_t>::kOps;
    case DType::kI32:
      return &Wide<uint32_t>::kOps;
    case DType::kI64:
      return &Wide<uint64_t>::kOps;
  }
  return nullptr;
}

// Local reduction of those types; false for small floats.
inline bool wide_local_reduce(const LocalReduceJob& job) {
  switch (job.source.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return false;
    case DType::kF64:
      Wide<double>::local_reduce(job);
      return true;
    case DType::kI8:
    case DType::kU8:
      Wide<uint8_t>::local_reduce(job);
      return true;
    case DType::kI32:
      Wide<uint32_t>::local_reduce(job);
      return true;
    case DType::kI64:
      Wide<uint64_t>::local_reduce(job);
      return true;
  }
  return true;
}

}  // namespace
}  // namespace cgx::kernels
