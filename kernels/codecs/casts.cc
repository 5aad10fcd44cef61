#include "kernels/codecs/casts.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Raw)
CGX_CODEC(Half)
CGX_CODEC(Brain)
}  // namespace cgx::kernels
