// From a table to a running kernel: shared memory, grid, stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/warp.cuh"

namespace cgx::kernels {
namespace {

constexpr uint32_t kTeamsMax = 8;             // of a block
constexpr uint32_t kSharedBytes = 48 * 1024;  // what every device gives a block without asking

template <class Codec, class Job>
__global__ void __launch_bounds__(kTeamsMax* Warp::kSize)
    segments_kernel(const cuda::Table<Job> table, uint32_t team_bytes) {
  extern __shared__ __align__(16) uint8_t shared[];
  const uint32_t teams = blockDim.x / Warp::kSize, own = threadIdx.x / Warp::kSize;
  Warp team;
  run_buckets<Codec>(team, table, uint64_t{blockIdx.x} * teams + own, uint64_t{gridDim.x} * teams,
                     shared + own * team_bytes);
}

template <class Job>
__global__ void norms_kernel(const cuda::Table<Job> table) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < table.count) sum_norms(table, index);
}

// As many blocks as fit on the device at once; their teams take buckets in turn.
template <class Codec, class Job>
int launch(const cuda::Device& device, const cuda::Table<Job>& table, cuda::Stream stream) {
  if (table.buckets == 0) return cudaSuccess;
  const uint32_t team_bytes = scratch_bytes<Codec>(table.bucket_max);
  const uint32_t teams = std::clamp(kSharedBytes / team_bytes, 1u, kTeamsMax);
  const uint32_t resident =
      std::max(1u, std::min(device.threads_per_multiprocessor / (teams * Warp::kSize),
                            device.shared_bytes_per_multiprocessor / (teams * team_bytes + 1024)));
  const uint64_t wanted = (table.buckets + teams - 1) / teams;
  const uint64_t most = uint64_t{device.multiprocessors} * resident;
  segments_kernel<Codec>
      <<<static_cast<uint32_t>(std::min(wanted, most)), teams * Warp::kSize, teams * team_bytes,
         static_cast<cudaStream_t>(stream)>>>(table, team_bytes);
  return cudaGetLastError();
}

struct NormsLauncher {
  template <class Job>
  static int norms(const cuda::Table<Job>& table, cuda::Stream stream) {
    if (table.norms == nullptr || table.count == 0) return cudaSuccess;
    constexpr uint32_t kThreads = 64;
    norms_kernel<<<(table.count + kThreads - 1) / kThreads, kThreads, 0,
                   static_cast<cudaStream_t>(stream)>>>(table);
    return cudaGetLastError();
  }
};

template <class Codec>
struct Launcher : NormsLauncher {
  template <class Job>
  static int run(const cuda::Device& device, const cuda::Table<Job>& table, cuda::Stream stream) {
    return launch<typename KernelOf<Codec>::Type>(device, table, stream);
  }
};
template <class Codec>
using Launching = cuda::LaunchesBy<Launcher<Codec>>;

}  // namespace
}  // namespace cgx::kernels

#define CGX_CUDA_CODEC_IN(launching, stem)                                          \
  const ::cgx::kernels::cuda::Launches& launches_of_##stem(const CodecSpec& spec) { \
    return stem##Family::ops<launching>(spec);                                      \
  }
#define CGX_CUDA_CODEC(stem) CGX_CUDA_CODEC_IN(Launching, stem)
