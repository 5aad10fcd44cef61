// QSGD by the L2 norm; qsgd.cc chooses.
#include "kernels/codecs/symmetric.h"
#include "kernels/lanes/lane.h"

namespace cgx::kernels {

const CodecOps& CGX_ON_LANE(QsgdL2)(const CodecSpec& spec);

const CodecOps& CGX_ON_LANE(QsgdL2)(const CodecSpec& spec) {
  return QsgdOf<Norm::kL2>::ops<Skeleton>(spec);
}

}  // namespace cgx::kernels
