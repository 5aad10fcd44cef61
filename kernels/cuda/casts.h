// fp16 as kernels have it: converted by instructions, which round as floats.h does.
#pragma once

#include "kernels/codecs/casts.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/memory.h"

namespace cgx::kernels {
namespace {

struct HalfKernel : Half {
  template <class Count>
  CGX_DEVICE static Word word_of(float x, const Meta&, Count& saturated) {
    const bool beyond = abs_bits(x) >= kHalfOverflowBits && abs_bits(x) < kInfBits;
    saturated += beyond;
    const Word largest = bits_of(x) & kSignBit ? 0xfbff : 0x7bff;
    return beyond ? largest : half_of(x);
  }
  CGX_DEVICE static float value_of(Word word) { return of_half(word); }
};
template <>
struct KernelOf<Half> {
  using Type = HalfKernel;
};

}  // namespace
}  // namespace cgx::kernels
