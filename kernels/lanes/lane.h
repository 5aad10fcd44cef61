// The lane that this object file is built for. Every file below codecs/ and lanes/ is compiled once
// per lane, with that lane's instruction set; CMake says which (CGX_LANE).
//
// CGX_ON_LANE(name) is the name with the lane in front: what an object file exports. Everything
// else it holds has internal linkage (README.md "One binary, several instruction sets").
#pragma once

#include "kernels/ops.h"

#define CGX_JOIN_(a, b) a##_##b
#define CGX_JOIN(a, b) CGX_JOIN_(a, b)
#define CGX_ON_LANE(name) CGX_JOIN(CGX_LANE, name)

#if defined(CGX_LANE_IS_SCALAR)
#include "kernels/lanes/scalar.h"
namespace cgx::kernels {
namespace {
template <class Codec>
using Skeleton = Scalar<Codec>;
}  // namespace
}  // namespace cgx::kernels
#else
#if defined(CGX_LANE_IS_AVX512)
#include "kernels/lanes/simd_avx512.h"
#else
#include "kernels/lanes/simd_avx2.h"
#endif
#include "kernels/lanes/vector.h"
namespace cgx::kernels {
namespace {
#if defined(CGX_LANE_IS_AVX512)
using LaneVector = Avx512;
#else
using LaneVector = Avx2;
#endif
template <class Codec>
using Skeleton = Vector<LaneVector, Codec>;
}  // namespace
}  // namespace cgx::kernels
#endif

// The instances of one codec row on this lane, by CodecSpec.
#define CGX_CODEC_IN(skeleton, stem)                         \
  const CodecOps& CGX_ON_LANE(stem)(const CodecSpec& spec) { \
    return stem##Family::ops<skeleton>(spec);                \
  }
#define CGX_CODEC(stem) CGX_CODEC_IN(Skeleton, stem)
