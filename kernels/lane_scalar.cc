// The scalar lane: the reference, on every architecture.
#include "kernels/rows.h"
#include "kernels/scalar.h"

namespace cgx::kernels {
namespace {

void local_reduce(const LocalReduceJob& job) {
  if (!wide_local_reduce(job)) scalar_local_reduce(job);
}

}  // namespace

const LaneOps kScalarOps = {instance_of<Scalar>, local_reduce};

}  // namespace cgx::kernels
