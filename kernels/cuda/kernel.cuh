// Kernels as the driver finds them: extern "C", one for each row of kernels.def and operation, and
// for Q rows another that takes small buckets.
//
// kernels.cu has CGX_KERNELS for the rows of a family, CGX_NORMS_KERNELS, and what sparse codecs
// need besides; nvcc makes a fatbin of each family.
#pragma once

#include <cstdint>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/sparse_table.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/warp.cuh"

namespace cgx::kernels {
namespace {

template <class Codec>
constexpr uint32_t kLanesMax = kIsSparse<Codec> ? kSparseLanes : kDenseLanes;

template <class Codec, class Job>
__device__ void run_sparse(const cuda::Table<Job>& table) {
  using Team = ThreadBlock<kSparseLanes>;
  __shared__ SparseShared shared;
  __shared__ typename Team::Staging staging;
  Team team(staging);
  run_sparse_buckets<Codec>(team, table, blockIdx.x, shared);
}

template <class Codec, class Team, class Job>
__device__ void run_segments(const cuda::Table<Job>& table, uint32_t team_bytes) {
  if constexpr (kIsSparse<Codec>) {
    run_sparse<Codec>(table);
  } else {
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t teams = blockDim.x / Team::kSize, own = threadIdx.x / Team::kSize;
    Team team;
    run_buckets<Codec>(team, table, uint64_t{blockIdx.x} * teams + own, uint64_t{gridDim.x} * teams,
                       shared + own * team_bytes);
  }
}

template <class Codec, class Job>
__device__ void run_find(const cuda::Table<Job>& table) {
  const uint64_t lane = uint64_t{blockIdx.x} * kFindLanes + threadIdx.x;
  const uint32_t part = static_cast<uint32_t>(lane / table.count);
  if (part < table.work.parts_max) {
    find_entries<Codec>(table, static_cast<uint32_t>(lane % table.count), part);
  }
}

template <class Job>
__device__ void run_pack(const cuda::Table<Job>& table) {
  using Team = ThreadBlock<kPackLanes>;
  __shared__ typename Team::Staging staging;
  Team team(staging);
  pack_entries(team, table, blockIdx.x, gridDim.x);
}

template <class Job>
__device__ void run_norms(const cuda::Table<Job>& table) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < table.count) sum_norms(table, index);
}

}  // namespace
}  // namespace cgx::kernels

#define CGX_KERNEL(stem, type, team, operation, job)                                        \
  extern "C" __global__ void __launch_bounds__(cgx::kernels::kLanesMax<cgx::kernels::type>) \
      cgx_##stem##_##operation(const cgx::kernels::cuda::Table<cgx::kernels::job> table,    \
                               uint32_t team_bytes) {                                       \
    cgx::kernels::run_segments<cgx::kernels::type, cgx::kernels::team>(table, team_bytes);  \
  }
#define CGX_KERNELS(stem, type, team)                    \
  CGX_KERNEL(stem, type, team, encode, EncodeJob)        \
  CGX_KERNEL(stem, type, team, decode, DecodeJob)        \
  CGX_KERNEL(stem, type, team, decode_add, DecodeAddJob) \
  CGX_KERNEL(stem, type, team, reduce, ReduceJob)        \
  CGX_KERNEL(stem, type, team, combine, CombineJob)

// After the operations that encode.
#define CGX_NORMS_KERNEL(operation, job)                          \
  extern "C" __global__ void cgx_norms_##operation(               \
      const cgx::kernels::cuda::Table<cgx::kernels::job> table) { \
    cgx::kernels::run_norms(table);                               \
  }
#define CGX_NORMS_KERNELS             \
  CGX_NORMS_KERNEL(encode, EncodeJob) \
  CGX_NORMS_KERNEL(reduce, ReduceJob)

// Before the operations that read entries, which others may have written with any length.
#define CGX_FIND_KERNEL(stem, type, operation, job)                                             \
  extern "C" __global__ void __launch_bounds__(cgx::kernels::kFindLanes)                        \
      cgx_##stem##_find_##operation(const cgx::kernels::cuda::Table<cgx::kernels::job> table) { \
    cgx::kernels::run_find<cgx::kernels::type>(table);                                          \
  }
#define CGX_FIND_KERNELS(stem, type)                    \
  CGX_FIND_KERNEL(stem, type, decode, DecodeJob)        \
  CGX_FIND_KERNEL(stem, type, decode_add, DecodeAddJob) \
  CGX_FIND_KERNEL(stem, type, reduce, ReduceJob)        \
  CGX_FIND_KERNEL(stem, type, combine, CombineJob)

// After the operations that write entries.
#define CGX_PACK_KERNEL(operation, job)                                                \
  extern "C" __global__ void __launch_bounds__(cgx::kernels::kPackLanes)               \
      cgx_pack_##operation(const cgx::kernels::cuda::Table<cgx::kernels::job> table) { \
    cgx::kernels::run_pack(table);                                                     \
  }
#define CGX_PACK_KERNELS             \
  CGX_PACK_KERNEL(encode, EncodeJob) \
  CGX_PACK_KERNEL(reduce, ReduceJob)
