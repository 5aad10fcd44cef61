#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/natural.h"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(Natural)
}  // namespace cgx::kernels::cuda
