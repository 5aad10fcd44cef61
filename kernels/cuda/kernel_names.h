// The names of all kernels as a text that stands for an image where no machine code is at hand: no
// GPU takes it, the stand-in driver of the tests does.
#pragma once

namespace cgx::kernels::cuda {

#define CGX_ENTRY(name) ".visible .entry cgx_" name "()\n"
constexpr char kKernelNames[] = ".version 7.0\n"
#define CGX_ENTRIES(stem)   \
  CGX_ENTRY(stem "_encode") \
  CGX_ENTRY(stem "_decode") \
  CGX_ENTRY(stem "_decode_add") CGX_ENTRY(stem "_reduce") CGX_ENTRY(stem "_combine")
#define X(stem, family, type) CGX_ENTRIES(#stem)
#define Q(stem, family, type) CGX_ENTRIES(#stem) CGX_ENTRIES(#stem "_small")
#define F(stem, type)                 \
  CGX_ENTRY(#stem "_find_decode")     \
  CGX_ENTRY(#stem "_find_decode_add") \
  CGX_ENTRY(#stem "_find_reduce") CGX_ENTRY(#stem "_find_combine")
#include "kernels/cuda/kernels.def"
#undef X
    CGX_ENTRY("norms_encode") CGX_ENTRY("norms_reduce") CGX_ENTRY("pack_encode")
        CGX_ENTRY("pack_reduce");
#undef CGX_ENTRIES
#undef CGX_ENTRY

}  // namespace cgx::kernels::cuda
