#include "kernels/codecs/maxmin.h"
#include "kernels/cuda/launch.cuh"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(MaxMin)
}  // namespace cgx::kernels::cuda
