// Powers of two as kernels have them: one kernel for both ways of rounding.
#pragma once

#include "kernels/codecs/natural.h"
#include "kernels/cuda/formats.h"

namespace cgx::kernels {
namespace {

template <uint32_t bits>
struct NaturalKernel : Natural<bits, Rounding::kNearest> {
  using Dithered = Natural<bits, Rounding::kStochastic>;
};
template <uint32_t bits, Rounding rounding>
struct KernelOf<Natural<bits, rounding>> {
  using Type = NaturalKernel<bits>;
};

}  // namespace
}  // namespace cgx::kernels
