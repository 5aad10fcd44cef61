#include "kernels/codecs/fp8.h"
#include "kernels/cuda/launch.cuh"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(Fp8)
}  // namespace cgx::kernels::cuda
