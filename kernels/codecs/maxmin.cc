#include "kernels/codecs/maxmin.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(MaxMin)
}  // namespace cgx::kernels
