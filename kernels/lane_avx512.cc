// The AVX-512 lane. Compiled with that instruction set and entered only where viable() allows.
#include "kernels/rows.h"
#include "kernels/simd_avx512.h"
#include "kernels/vector.h"

namespace cgx::kernels {
namespace {

template <class Codec>
using Skeleton = Vector<Avx512, Codec>;

void local_reduce(const LocalReduceJob& job) {
  if (!wide_local_reduce(job)) vector_local_reduce<Avx512>(job);
}

}  // namespace

const LaneOps kAvx512Ops = {instance_of<Skeleton>, local_reduce};

}  // namespace cgx::kernels
