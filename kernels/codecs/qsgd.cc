// QSGD by the largest magnitude; qsgd_l2.cc has the other norm.
#include "kernels/codecs/symmetric.h"
#include "kernels/lanes/lane.h"

namespace cgx::kernels {

const CodecOps& CGX_ON_LANE(QsgdL2)(const CodecSpec& spec);

const CodecOps& CGX_ON_LANE(Qsgd)(const CodecSpec& spec) {
  if (spec.flags & CodecSpec::kL2Norm) return CGX_ON_LANE(QsgdL2)(spec);
  return QsgdFamily::ops<Skeleton>(spec);
}

}  // namespace cgx::kernels
