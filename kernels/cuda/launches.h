// What the file of a codec family exports: its launches, by CodecSpec. They return a cudaError_t.
#pragma once

#include "kernels/cuda/cuda_lane.h"

namespace cgx::kernels::cuda {

struct Launches {
  int (*encode)(const Device&, const Table<EncodeJob>&, Stream);
  int (*decode)(const Device&, const Table<DecodeJob>&, Stream);
  int (*decode_add)(const Device&, const Table<DecodeAddJob>&, Stream);
  int (*reduce)(const Device&, const Table<ReduceJob>&, Stream);
  int (*combine)(const Device&, const Table<CombineJob>&, Stream);
};

#define X(stem, ...) const Launches& launches_of_##stem(const CodecSpec&);
#include "kernels/codecs.def"
#undef X

}  // namespace cgx::kernels::cuda
