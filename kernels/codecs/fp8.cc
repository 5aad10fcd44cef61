#include "kernels/codecs/fp8.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Fp8)
}  // namespace cgx::kernels
