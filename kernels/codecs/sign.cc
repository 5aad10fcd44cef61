#include "kernels/codecs/sign.h"

#include "kernels/lanes/lane.h"

namespace cgx::kernels {
CGX_CODEC(EfSign)
CGX_CODEC(SignVote)
CGX_CODEC(OneBit)
}  // namespace cgx::kernels
