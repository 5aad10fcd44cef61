// The kernels of one family for the driver: of `casts` with -DCGX_ONLY_casts=1.
#include "kernels/cuda/dense.h"
#include "kernels/cuda/kernel.cuh"

#define CGX_KERNELS_OF(family) CGX_ONLY_##family
#define X(stem, family, type) CGX_KERNELS(stem, type, Warp)
#define Q(stem, family, type) X(stem, family, type) CGX_KERNELS(stem##_small, type, QuarterWarp)
#define F(stem, type) CGX_FIND_KERNELS(stem, type)
#include "kernels/cuda/kernels.def"
#undef X
CGX_NORMS_KERNELS
#if CGX_ONLY_sparse
CGX_PACK_KERNELS
#endif
