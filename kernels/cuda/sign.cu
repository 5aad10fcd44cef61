#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sign.h"

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC(EfSign)
CGX_CUDA_CODEC(SignVote)
CGX_CUDA_CODEC(OneBit)
}  // namespace cgx::kernels::cuda
