// Max-min as kernels have it: one kernel for both ways of rounding, which differ in a few lines.
#pragma once

#include "kernels/codecs/maxmin.h"
#include "kernels/cuda/formats.h"

namespace cgx::kernels {
namespace {

template <uint32_t bits>
struct MaxMinKernel : MaxMin<bits, Rounding::kNearest> {
  using Dithered = MaxMin<bits, Rounding::kStochastic>;
};
template <uint32_t bits, Rounding rounding>
struct KernelOf<MaxMin<bits, rounding>> {
  using Type = MaxMinKernel<bits>;
};

}  // namespace
}  // namespace cgx::kernels
