// The kernels of max-min for the driver.
#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/maxmin.h"

#define X(stem, type) CGX_KERNELS(stem, type)
#include "kernels/cuda/kernels.def"
#undef X
CGX_NORMS_KERNELS
