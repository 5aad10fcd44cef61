// What goes into a bucket and comes out of it, on sixteen lanes: local ranks, residuals, targets.
#pragma once

#include <cstdint>

#include "kernels/block.h"
#include "kernels/codec.h"
#include "kernels/floats.h"
#include "kernels/ops.h"

namespace cgx::kernels {
namespace {

// Calls f.template operator()<dtype>() for a small float type.
template <class F>
CGX_INLINE void with_small_float(DType dtype, F f) {
  if (dtype == DType::kF32) {
    f.template operator()<DType::kF32>();
  } else if (dtype == DType::kF16) {
    f.template operator()<DType::kF16>();
  } else {
    f.template operator()<DType::kBF16>();
  }
}

// Fetches the block that is `ahead` bytes further on, but never beyond the range. The hardware's
// own prefetcher stops at the end of each pass over a bucket.
template <class V>
class Prefetch {
 public:
  // `element_bytes` and `elements` describe the whole range, a block or more.
  CGX_INLINE Prefetch(uint32_t element_bytes, uint64_t elements)
      : element_bytes_(element_bytes),
        ahead_(read_ahead_bytes() / element_bytes),
        last_(elements < kBlock ? 0 : elements - kBlock) {}

  CGX_INLINE void operator()(const void* values, uint64_t first) const {
    const uint64_t wanted = first + ahead_, clamped = wanted < last_ ? wanted : last_;
    V::prefetch(static_cast<const char*>(values) + clamped * element_bytes_,
                kBlock * element_bytes_);
  }

 private:
  uint32_t element_bytes_;
  uint64_t ahead_, last_;
};

// One machine's sum, block by block; scalar.h's load_sum.
template <class V, DType dtype, bool keep_nan>
class Source {
 public:
  CGX_INLINE Source(const RawView& view, uint64_t elements)
      : view_(view),
        scaled_(static_cast<float>(view.scale) != 1.0f),
        scale_(V::splat(static_cast<float>(view.scale))),
        fetch_rank_(dtype == DType::kF32 ? 4 : 2, elements),
        fetch_residual_(4, elements) {}

  CGX_INLINE Block<V> get(uint64_t first) const {
    Block<V> x = {{V::splat(0.0f), V::splat(0.0f), V::splat(0.0f), V::splat(0.0f)}};
    if (view_.rank_count > 0) x = rank(0, first);
    for (uint32_t r = 1; r < view_.rank_count; ++r) x = x + rank(r, first);
    if (scaled_) x = x * scale_;
    if (view_.residual_in) {
      fetch_residual_(view_.residual_in, first);
      x = x + load_block<V>(view_.residual_in + first);
    }
    return keep_nan ? map(x, [](auto v) { return V::canonical_nan(v); }) : x;
  }

 private:
  CGX_INLINE Block<V> rank(uint32_t r, uint64_t first) const {
    fetch_rank_(view_.ranks[r], first);
    return load_values<V, dtype>(view_.ranks[r], first);
  }

  const RawView& view_;
  bool scaled_;
  typename V::Floats scale_;
  Prefetch<V> fetch_rank_, fetch_residual_;
};

// One fp32 rank without arithmetic.
template <class V>
class Direct {
 public:
  CGX_INLINE Direct(const RawView& view, uint64_t elements)
      : x_(static_cast<const float*>(view.ranks[0])), fetch_(4, elements) {}
  CGX_INLINE Block<V> get(uint64_t first) const {
    fetch_(x_, first);
    return load_block<V>(x_ + first);
  }

 private:
  const float* x_;
  Prefetch<V> fetch_;
};

inline bool is_plain(const RawView& view) {
  return view.dtype == DType::kF32 && view.rank_count == 1 &&
         static_cast<float>(view.scale) == 1.0f && view.residual_in == nullptr;
}

// Calls f(source) with what reads this view best.
template <class V, bool keep_nan, class F>
CGX_INLINE void with_source(const RawView& view, uint64_t elements, F f) {
  if (is_plain(view)) return f(Direct<V>(view, elements));
  with_small_float(view.dtype,
                   [&]<DType dtype>() { f(Source<V, dtype, keep_nan>(view, elements)); });
}

constexpr bool is_line(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 64 == 0;
}

// Where the codes of a bucket go: straight to memory, or by whole lines past the caches.
class Output {
 public:
  CGX_INLINE Output(uint8_t* target, uint64_t bytes, bool stream)
      : target_(target), bytes_(bytes), stream_(stream && is_line(target) && bytes % 64 == 0) {}
  CGX_INLINE uint8_t* begin() { return stream_ ? staged_ : target_; }
  template <class V>
  CGX_INLINE void flush() const {
    if (!stream_) return;
#pragma GCC unroll 1
    for (uint64_t i = 0; i < bytes_; i += 64) V::stream_line(target_ + i, staged_ + i);
  }

 private:
  uint8_t* target_;
  uint64_t bytes_;
  bool stream_;
  alignas(64) uint8_t staged_[kBucketMax * sizeof(float)];
};

// A reduced value that the tensor's dtype cannot hold counts as infinite; NaN stays.
template <class V>
CGX_INLINE typename V::Floats overflow_to_infinity(typename V::Floats x, uint32_t limit) {
  const auto bits = V::bits(x), magnitude = bits & V::splat(kAbsMask);
  const auto infinity = (bits & V::splat(kSignBit)) | V::splat(kInfBits);
  const auto high =
      V::both(V::less(V::splat(limit - 1), magnitude), V::less(magnitude, V::splat(kInfBits)));
  return V::as_floats(V::select(high, infinity, bits));
}

// The local results of a decode or reduce.
struct Targets {
  void* const* targets;
  uint32_t count;

  // Streaming stores need aligned addresses and pay for fp32 only.
  bool can_stream(DType dtype) const {
    if (dtype != DType::kF32) return false;
    for (uint32_t t = 0; t < count; ++t) {
      if (!is_line(targets[t])) return false;
    }
    return true;
  }

  template <class V, DType dtype, bool stream>
  CGX_INLINE void store(uint64_t first, const Block<V>& x) const {
    for (uint32_t t = 0; t < count; ++t) {
      if constexpr (stream) {
        stream_block<V>(static_cast<float*>(targets[t]) + first, x);
      } else {
        store_values<V, dtype>(targets[t], first, x);
      }
    }
  }
};

}  // namespace
}  // namespace cgx::kernels
