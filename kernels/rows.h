// The codec headers behind codecs.def, and the choice of a codec's instance on one lane.
#pragma once

#include "kernels/casts.h"
#include "kernels/maxmin.h"
#include "kernels/wide.h"

namespace cgx::kernels {
namespace {

// `Skeleton` is what a lane makes of a codec: Skeleton<Codec>::kOps. The spec was validated.
template <template <class> class Skeleton>
const CodecOps& instance_of(const CodecSpec& spec, DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
    case DType::kF64:
      return Wide<double>::kOps;
    case DType::kI8:
    case DType::kU8:
      return Wide<uint8_t>::kOps;
    case DType::kI32:
      return Wide<uint32_t>::kOps;
    case DType::kI64:
      return Wide<uint64_t>::kOps;
  }
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return stem##Family::ops<Skeleton>(spec);
#include "kernels/codecs.def"
#undef X
  }
  return Skeleton<Raw>::kOps;
}

// Local reduction of the types that are not small floats; false for those that are.
inline bool wide_local_reduce(const LocalReduceJob& job) {
  switch (job.source.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return false;
    case DType::kF64:
      Wide<double>::local_reduce(job);
      return true;
    case DType::kI8:
    case DType::kU8:
      Wide<uint8_t>::local_reduce(job);
      return true;
    case DType::kI32:
      Wide<uint32_t>::local_reduce(job);
      return true;
    case DType::kI64:
      Wide<uint64_t>::local_reduce(job);
      return true;
  }
  return true;
}

}  // namespace
}  // namespace cgx::kernels
