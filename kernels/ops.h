// What a lane's own source file exports: plain functions over jobs, no Status, no strings.
//
// codec.h's Lane wraps these (lanes.cc), so that no library template is instantiated in a file
// compiled for a particular instruction set.
#pragma once

#include "kernels/codec.h"

namespace cgx::kernels {

constexpr uint64_t kNoBucket = UINT64_MAX;

// encode returns the bytes it used; so does reduce, in *used. The others, and reduce, return the
// first bucket that no encoder writes, or kNoBucket.
struct CodecOps {
  uint64_t (*encode)(const EncodeJob&, const Tuning&, RangeStats&);
  uint64_t (*decode)(const DecodeJob&, const Tuning&, RangeStats&);
  uint64_t (*reduce)(const ReduceJob&, const Tuning&, RangeStats&, uint64_t* used);
  uint64_t (*combine)(const CombineJob&, const Tuning&, RangeStats&);
  uint64_t (*decode_add)(const DecodeAddJob&, const Tuning&, RangeStats&);
};

struct LaneOps {
  const CodecOps& (*codec)(const CodecSpec&, DType);
  void (*local_reduce)(const LocalReduceJob&, const Tuning&);
  bool tunes;  // reads its Tuning
};

// Every row of the table on every lane; codecs/<name>.cc defines one per lane.
#define X(stem, ...)                               \
  const CodecOps& scalar_##stem(const CodecSpec&); \
  const CodecOps& avx2_##stem(const CodecSpec&);   \
  const CodecOps& avx512_##stem(const CodecSpec&);
#include "kernels/codecs.def"
#undef X

extern const LaneOps scalar_ops;
extern const LaneOps avx2_ops;
extern const LaneOps avx512_ops;

}  // namespace cgx::kernels
