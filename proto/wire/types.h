// The small vocabulary both sides of every edge share: element types, reductions, codec choices.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cgx {

enum class DType : uint8_t {
#define X(name, number, bytes, text) k##name = number,
#include "proto/wire/dtypes.def"
#undef X
};
bool dtype_known(uint8_t number);
size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);
// fp32, fp16 and bf16: what quantizers accept. Sums of these run in fp32; fp64 stays fp64.
bool dtype_is_small_float(DType dtype);
DType sum_dtype(DType dtype);  // what sums of it run in

enum class ReduceOp : uint8_t { kSum = 0, kAvg = 1 };
std::string_view reduce_op_name(ReduceOp op);

// How a sparse codec carries the values it selects.
enum class SparseValues : uint8_t { kF32 = 0, kF16 = 1, kMaxMin8 = 2, kMaxMin4 = 3 };

// Which codec a segment uses and how: enough to decode. Plain bytes, compared and hashed as such.
struct CodecSpec {
  enum Flags : uint8_t { kStochastic = 1, kFeedback = 2, kL2Norm = 4, kClip = 8 };
  uint8_t codec = 0;  // row number in kernels/codecs.def; 0 = raw
  uint8_t bits = 0;   // quantizers: bits of a code; fp8: bits of the exponent
  uint8_t flags = 0;  // Flags
  SparseValues values = SparseValues::kF32;
  uint32_t bucket = 512;  // elements that share a scale, or from which a sparse codec selects; also
                          // the unit shards and chunks are cut at
  float amount = 0;       // sparse codecs: the share that is kept, or the threshold
  uint32_t reserved = 0;  // zero

  bool stochastic() const { return flags & kStochastic; }
  bool feedback() const { return flags & kFeedback; }
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};
static_assert(sizeof(CodecSpec) == 16);

constexpr uint32_t kBucketMin = 64;
constexpr uint32_t kBucketMax = 4096;
constexpr uint32_t kSparseBucket = 65536;  // what sparse codecs select from; indices fit 16 bits

}  // namespace cgx
