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

// All of them by a launcher: run<Job>() for the operation, norms() after those that encode.
template <class Launcher>
struct LaunchesBy {
  template <class Job>
  static int run_with_norms(const Device& device, const Table<Job>& table, Stream stream) {
    const int error = Launcher::template run<Job>(device, table, stream);
    return error == 0 ? Launcher::template norms<Job>(table, stream) : error;
  }
  static constexpr Launches kOps = {run_with_norms<EncodeJob>, Launcher::template run<DecodeJob>,
                                    Launcher::template run<DecodeAddJob>, run_with_norms<ReduceJob>,
                                    Launcher::template run<CombineJob>};
};

#define X(stem, ...) const Launches& launches_of_##stem(const CodecSpec&);
#include "kernels/codecs.def"
#undef X

}  // namespace cgx::kernels::cuda
