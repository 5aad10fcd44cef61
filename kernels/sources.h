// What goes into a bucket and comes out of it, on sixteen lanes: local ranks, residuals, targets.
#pragma once

#include <cstdint>

#include "kernels/block.h"
#include "kernels/codec.h"
#include "kernels/floats.h"

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

// One machine's sum, block by block; scalar.h's load_sum.
template <class V, DType dtype, bool keep_nan>
class Source {
 public:
  explicit CGX_INLINE Source(const RawView& view)
      : view_(view),
        scaled_(static_cast<float>(view.scale) != 1.0f),
        scale_(V::splat(static_cast<float>(view.scale))) {}

  CGX_INLINE Block<V> get(uint64_t first) const {
    Block<V> x = {{V::splat(0.0f), V::splat(0.0f), V::splat(0.0f), V::splat(0.0f)}};
    if (view_.rank_count > 0) x = load_values<V, dtype>(view_.ranks[0], first);
    for (uint32_t r = 1; r < view_.rank_count; ++r) {
      x = x + load_values<V, dtype>(view_.ranks[r], first);
    }
    if (scaled_) x = x * scale_;
    if (view_.residual_in) x = x + load_block<V>(view_.residual_in + first);
    return keep_nan ? map(x, [](auto v) { return V::canonical_nan(v); }) : x;
  }

 private:
  const RawView& view_;
  bool scaled_;
  typename V::Floats scale_;
};

inline bool is_plain(const RawView& view) {
  return view.dtype == DType::kF32 && view.rank_count == 1 &&
         static_cast<float>(view.scale) == 1.0f && view.residual_in == nullptr;
}

// Scans the view's values first .. first + n; returns them: in place if nothing has to be computed,
// else in scratch. `n` is a multiple of 64.
template <class V, bool keep_nan, class Scan>
CGX_INLINE const float* read_source(const RawView& view, uint64_t first, uint32_t n, float* scratch,
                                    Scan& scan) {
  if (is_plain(view)) {
    const float* x = static_cast<const float*>(view.ranks[0]) + first;
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) scan.add(load_block<V>(x + e));
    return x;
  }
  with_small_float(view.dtype, [&]<DType dtype>() {
    const Source<V, dtype, keep_nan> source(view);
#pragma GCC unroll 1
    for (uint32_t e = 0; e < n; e += kBlock) {
      const Block<V> x = source.get(first + e);
      store_block<V>(scratch + e, x);
      scan.add(x);
    }
  });
  return scratch;
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

// The local results of a decode or reduce.
struct Targets {
  void* const* targets;
  uint32_t count;

  // Streaming stores need aligned addresses and pay for fp32 only.
  bool can_stream(DType dtype) const {
    if (dtype != DType::kF32) return false;
    for (uint32_t t = 0; t < count; ++t) {
      if (reinterpret_cast<uintptr_t>(targets[t]) % 64 != 0) return false;
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
