#include "kernels/codecs/symmetric.h"
#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Qsgd)
}  // namespace cgx::kernels
