#include "kernels/codecs/natural.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(Natural)
}  // namespace cgx::kernels
