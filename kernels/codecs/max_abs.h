// The largest magnitude of a bucket, as bits: all that some codecs scan for.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/lanes/block.h"
#include "kernels/sums.h"

namespace cgx::kernels {
namespace {

// Of codecs that scan for nothing else.
struct MaxAbsExtent {
  using Extent = uint32_t;
  CGX_SHARED static Extent empty_extent() { return 0; }
  CGX_SHARED static void add(Extent& extent, float x) { merge(extent, abs_bits(x)); }
  CGX_SHARED static void merge(Extent& extent, Extent other) {
    extent = other > extent ? other : extent;
  }
  static Extent extent_of(const float* x, uint32_t n) { return max_abs_bits(x, n); }
  CGX_SHARED static uint32_t max_abs(Extent extent) { return extent; }
};

template <class V>
class MaxAbsScan {
 public:
  CGX_INLINE void add(const Block<V>& x) {
    for_each_vector([&](auto i) {
      max_abs_ = V::max_signed(max_abs_, V::bits(x.v[i.j]) & V::splat(kAbsMask));
    });
  }
  CGX_INLINE uint32_t extent() const { return static_cast<uint32_t>(V::highest_signed(max_abs_)); }

 private:
  typename V::Ints max_abs_ = V::splat(0);
};

}  // namespace
}  // namespace cgx::kernels
