#include "kernels/codecs/sparse.h"

#include "kernels/lanes/lane.h"
#if defined(CGX_LANE_IS_SCALAR)
#include "kernels/lanes/sparse_scalar.h"
#else
#include "kernels/lanes/sparse_vector.h"
#endif

namespace cgx::kernels {
namespace {
#if defined(CGX_LANE_IS_SCALAR)
using SparseLane = SparseScalar;
#else
using SparseLane = SparseVector<LaneVector>;
#endif
template <class Codec>
using SparseSkeleton = Sparse<SparseLane, Codec>;
}  // namespace

CGX_CODEC_IN(SparseSkeleton, TopK)
CGX_CODEC_IN(SparseSkeleton, Threshold)
CGX_CODEC_IN(SparseSkeleton, RandomK)
}  // namespace cgx::kernels
