// What a lane's own source file exports: plain functions over jobs, no Status, no strings.
//
// codec.h's Lane wraps these (lanes.cc), so that no library template is instantiated in a file
// compiled for a particular instruction set.
#pragma once

#include "kernels/codec.h"

namespace cgx::kernels {

constexpr uint64_t kNoBucket = UINT64_MAX;

// decode, reduce and decode_add return the first bucket with impossible metadata, or kNoBucket.
struct CodecOps {
  void (*encode)(const EncodeJob&, RangeStats&);
  uint64_t (*decode)(const DecodeJob&, RangeStats&);
  uint64_t (*reduce)(const ReduceJob&, RangeStats&);
  uint64_t (*decode_add)(const DecodeAddJob&, RangeStats&);
};

struct LaneOps {
  const CodecOps& (*codec)(const CodecSpec&, DType);
  void (*local_reduce)(const LocalReduceJob&);
};

// How far ahead of its use memory is asked for, 0 where this machine's own prefetcher does better.
uint32_t read_ahead_bytes();

extern const LaneOps kScalarOps;
extern const LaneOps kAvx2Ops;
extern const LaneOps kAvx512Ops;

}  // namespace cgx::kernels
