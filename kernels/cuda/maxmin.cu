#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/maxmin.h"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(MaxMin)
}  // namespace cgx::kernels::cuda
