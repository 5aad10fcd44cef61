#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/symmetric.h"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(Qsgd)
CGX_CUDA_CODEC(TernGrad)
CGX_CUDA_CODEC(Int8)
}  // namespace cgx::kernels::cuda
