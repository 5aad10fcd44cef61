// The largest magnitude of a bucket, as bits: all that some codecs scan for. sums.h has it for one
// value after the other.
#pragma once

#include <cstdint>

#include "kernels/floats.h"
#include "kernels/lanes/block.h"

namespace cgx::kernels {
namespace {

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
