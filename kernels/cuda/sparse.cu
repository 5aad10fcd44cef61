// Launches of the sparse codecs: entries are found first, where they are read, and moved together
// at last, where they are written.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sparse_table.h"

namespace cgx::kernels {
namespace {

using SparseTeam = ThreadBlock<kSparseLanes>;
using PackTeam = ThreadBlock<kPackLanes>;

template <class Codec, class Job>
__global__ void __launch_bounds__(kFindLanes) find_kernel(const cuda::Table<Job> table) {
  const uint64_t lane = uint64_t{blockIdx.x} * kFindLanes + threadIdx.x;
  const uint32_t p = static_cast<uint32_t>(lane / table.count);
  if (p < table.work.parts_max) {
    find_entries<Codec>(table, static_cast<uint32_t>(lane % table.count), p);
  }
}

template <class Codec, class Job>
__global__ void __launch_bounds__(kSparseLanes) sparse_kernel(const cuda::Table<Job> table) {
  __shared__ SparseShared shared;
  __shared__ SparseTeam::Staging staging;
  SparseTeam team(staging);
  run_sparse_buckets<Codec>(team, table, blockIdx.x, shared);
}

template <class Job>
__global__ void __launch_bounds__(kPackLanes) pack_kernel(const cuda::Table<Job> table) {
  __shared__ PackTeam::Staging staging;
  PackTeam team(staging);
  pack_entries(team, table, blockIdx.x, gridDim.x);
}

template <class Codec, class Job>
int launch_sparse(const cuda::Device& device, const cuda::Table<Job>& table, cuda::Stream on) {
  if (table.buckets == 0) return cudaSuccess;
  if (table.work.memory == nullptr) return cudaErrorInvalidValue;
  const cudaStream_t stream = static_cast<cudaStream_t>(on);
  const uint64_t ranges = uint64_t{table.count} * table.work.parts_max;
  if constexpr (kReads<Job> && !Codec::kDrawn) {
    const uint32_t blocks = static_cast<uint32_t>((ranges + kFindLanes - 1) / kFindLanes);
    if (ranges > 0) find_kernel<Codec><<<blocks, kFindLanes, 0, stream>>>(table);
  }
  sparse_kernel<Codec><<<table.work.teams, kSparseLanes, 0, stream>>>(table);
  if constexpr (kWrites<Job>) {
    const uint64_t resident =
        uint64_t{device.multiprocessors} * (device.threads_per_multiprocessor / kPackLanes);
    const uint32_t blocks = static_cast<uint32_t>(std::min(table.buckets, resident));
    pack_kernel<<<blocks, kPackLanes, 0, stream>>>(table);
  }
  return cudaGetLastError();
}

template <class Codec>
struct SparseLauncher : NormsLauncher {
  template <class Job>
  static int run(const cuda::Device& device, const cuda::Table<Job>& table, cuda::Stream stream) {
    return launch_sparse<Codec>(device, table, stream);
  }
};
template <class Codec>
using SparseLaunching = cuda::LaunchesBy<SparseLauncher<Codec>>;

}  // namespace
}  // namespace cgx::kernels

namespace cgx::kernels::cuda {
CGX_CUDA_CODEC_IN(SparseLaunching, TopK)
CGX_CUDA_CODEC_IN(SparseLaunching, Threshold)
CGX_CUDA_CODEC_IN(SparseLaunching, RandomK)
}  // namespace cgx::kernels::cuda
