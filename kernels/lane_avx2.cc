// The AVX2 lane. Compiled with that instruction set and entered only where viable() allows.
#include "kernels/rows.h"
#include "kernels/simd_avx2.h"
#include "kernels/vector.h"

namespace cgx::kernels {
namespace {

template <class Codec>
using Skeleton = Vector<Avx2, Codec>;

void local_reduce(const LocalReduceJob& job) {
  if (!wide_local_reduce(job)) vector_local_reduce<Avx2>(job);
}

}  // namespace

const LaneOps kAvx2Ops = {instance_of<Skeleton>, local_reduce};

}  // namespace cgx::kernels
