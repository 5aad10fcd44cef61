#include "kernels/codecs/casts.h"
#include "kernels/cuda/launch.cuh"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(Raw)
CGX_CUDA_CODEC(Half)
CGX_CUDA_CODEC(Brain)
}  // namespace cgx::kernels::cuda
