// What goes into a bucket and comes out of it, on sixteen lanes: local ranks, residuals, codes,
// targets.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/floats.h"
#include "kernels/lanes/block.h"
#include "kernels/ops.h"

namespace cgx::kernels {
namespace {

inline bool is_line(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 64 == 0;
}

// Whether results of so many fp32 values go past the caches.
inline bool streams(const Access& access, uint64_t elements) {
  return access.stream && elements * sizeof(float) >= kStreamBytes;
}

// The lines of `bytes` bytes from p on, which is some way ahead of what is read.
template <class V>
CGX_INLINE void fetch(const Access& access, const void* p, uint64_t bytes) {
  const char* line = static_cast<const char*>(p);
  if (access.second_level) {
    for (uint64_t i = 0; i < bytes; i += 64) V::prefetch_second(line + i);
  } else {
    for (uint64_t i = 0; i < bytes; i += 64) V::prefetch(line + i);
  }
}

// Fetches the block that is some bytes further on. Behind a range that is longer than that the next
// part's first values lie, as a rule: any address is allowed.
template <class V>
class Prefetch {
 public:
  // The whole range: its element size and how many there are.
  CGX_INLINE Prefetch(const Access& access, uint32_t element_bytes, uint64_t elements)
      : access_(access), element_bytes_(element_bytes) {
    if (elements * element_bytes <= access.ahead_bytes) access_.ahead_bytes = 0;
  }

  CGX_INLINE void operator()(const void* values, uint64_t first) const {
    const char* p = static_cast<const char*>(values) + first * element_bytes_ + access_.ahead_bytes;
    fetch<V>(access_, p, 128);
    if (element_bytes_ == 4) fetch<V>(access_, p + 128, 128);
  }

 private:
  Access access_;
  uint32_t element_bytes_;
};

// One machine's sum, block by block; scalar.h's load_sum, with NaN left as arithmetic leaves it.
template <class V>
class Source {
 public:
  CGX_INLINE Source(const RawView& view, uint64_t elements, const Access& access)
      : view_(view),
        scaled_(static_cast<float>(view.scale) != 1.0f),
        scale_(V::splat(static_cast<float>(view.scale))),
        residual_scale_(V::splat(view.residual_scale)),
        fetch_rank_(access, view.dtype == DType::kF32 ? 4 : 2, elements),
        fetch_residual_(access, 4, elements) {}

  CGX_INLINE Block<V> get(uint64_t first) const {
    Block<V> x = view_.rank_count > 0 ? rank(0, first) : splat_block<V>(0.0f);
    for (uint32_t r = 1; r < view_.rank_count; ++r) x = x + rank(r, first);
    if (scaled_) x = x * scale_;
    if (view_.residual_in) {
      fetch_residual_(view_.residual_in, first);
      x = x + load_block<V>(view_.residual_in + first) * residual_scale_;
    }
    return x;
  }

 private:
  CGX_INLINE Block<V> rank(uint32_t r, uint64_t first) const {
    fetch_rank_(view_.ranks[r], first);
    return load_values<V>(view_.ranks[r], view_.dtype, first);
  }

  const RawView& view_;
  bool scaled_;
  typename V::Floats scale_, residual_scale_;
  Prefetch<V> fetch_rank_, fetch_residual_;
};

// One fp32 rank without arithmetic: keeps the bits of NaN.
template <class V>
class Direct {
 public:
  CGX_INLINE Direct(const RawView& view, uint64_t elements, const Access& access)
      : x_(static_cast<const float*>(view.ranks[0])), fetch_(access, 4, elements) {}
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

// sum += what the view contributes; the first contribution starts from +0.0. `n` is whole blocks.
template <class V>
[[gnu::noinline]] void add_raw(const RawView& view, const Access& access, uint64_t elements,
                               uint64_t first, uint32_t n, bool is_first, float* sum) {
  const Source<V> source(view, elements, access);
#pragma GCC unroll 1
  for (uint32_t e = 0; e < n; e += kBlock) {
    const Block<V> before = is_first ? splat_block<V>(0.0f) : load_block<V>(sum + e);
    store_block<V>(sum + e, canonical_nan(before + source.get(first + e)));
  }
}

// A reduced value that the tensor's dtype cannot hold counts as infinite; NaN stays.
template <class V>
CGX_INLINE typename V::Floats overflow_to_infinity(typename V::Floats x, uint32_t limit) {
  const auto bits = V::bits(x), magnitude = bits & V::splat(kAbsMask);
  const auto infinity = (bits & V::splat(kSignBit)) | V::splat(kInfBits);
  const auto high =
      V::both(V::less(V::splat(limit - 1), magnitude), V::less(magnitude, V::splat(kInfBits)));
  return V::as_floats(V::select(high, infinity, bits));
}

// The local results of a decode or reduce. Only fp32 pays for streaming stores, which want whole
// lines.
template <class V>
class Targets {
 public:
  CGX_INLINE Targets(void* const* targets, uint32_t count, DType dtype, bool stream)
      : targets_(targets), count_(count), dtype_(dtype) {
    stream_ = stream && dtype == DType::kF32;
    for (uint32_t t = 0; t < count; ++t) stream_ = stream_ && is_line(targets[t]);
  }
  bool streams() const { return stream_; }
  CGX_INLINE void store(uint64_t first, const Block<V>& x) const {
    for (uint32_t t = 0; t < count_; ++t) {
      if (stream_) {
        stream_block<V>(static_cast<float*>(targets_[t]) + first, x);
      } else {
        store_values<V>(targets_[t], dtype_, first, x);
      }
    }
  }

 private:
  void* const* targets_;
  uint32_t count_;
  DType dtype_;
  bool stream_;
};

}  // namespace
}  // namespace cgx::kernels
