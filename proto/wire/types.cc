#include "proto/wire/types.h"

namespace cgx {

bool dtype_known(uint8_t number) {
  switch (number) {
#define X(name, number, bytes, text) case number:
#include "proto/wire/dtypes.def"
#undef X
    return true;
  }
  return false;
}

size_t dtype_bytes(DType dtype) {
  switch (dtype) {
#define X(name, number, bytes, text) \
  case DType::k##name:               \
    return bytes;
#include "proto/wire/dtypes.def"
#undef X
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
#define X(name, number, bytes, text) \
  case DType::k##name:               \
    return text;
#include "proto/wire/dtypes.def"
#undef X
  }
  return "unknown";
}

bool dtype_is_small_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

DType sum_dtype(DType dtype) {
  return dtype_is_small_float(dtype) ? DType::kF32 : dtype;
}

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
  }
  return "unknown";
}

}  // namespace cgx
