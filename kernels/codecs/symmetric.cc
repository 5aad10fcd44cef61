#include "kernels/codecs/symmetric.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Int8)
CGX_CODEC(TernGrad)
}  // namespace cgx::kernels
