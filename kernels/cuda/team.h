// A team: the lanes that work on one bucket together, written so that a host can stand in for them.
//
// Kernel bodies are templates over a Team and say what every lane does from one barrier to the
// next:
//   Each<T> x                 one T per lane; x[t] is lane t's
//   each(f)                   every lane t calls f(t), then all see what the others wrote
//   lanes(f)                  the same without the barrier: f touches what is lane t's alone
//   merge(x, f)               f(a, b) folds b into a; the fold of all lanes' x, known to all
//   fold(x)                   the sum of floats in the order of sums.h's partials 0 to kSize - 1
//   ballot(f)                 bit t is f(t)
//   add(p, n), lower(p, n)    one lane adds to or lowers a number that all teams share
// Teams of several warps, for large buckets, have no fold and no ballot, but:
//   scan(x)                   x[t] becomes the sum of the lanes before t; returns the sum of all
//   bump(p, n), set(p, bits)  a lane adds to, sets bits of a number that other lanes change as well
//   warps(f)                  f(warp, w, warps) for every warp as a team of its own, then a barrier
// What stands between such calls is uniform: every lane computes the same. All but lanes have
// barriers, so what was written before one can be read after it. On a device
// (kernels/cuda/warp.cuh, block.cuh) a team is a warp or a block and x[t] a register; in tests
// (tests/gpu/) a warp is a loop over its lanes, a block so many fibers.
#pragma once

#include "kernels/floats.h"

#ifdef __CUDACC__
#define CGX_DEVICE __device__
#define CGX_ROLLED _Pragma("unroll 1")  // loops that few buckets need stay small
#else
#define CGX_DEVICE
#define CGX_ROLLED
#endif
