// The kernels' own bodies as twins for the stand-in driver: one for each row of kernels.def and
// operation, run by EmulatedLanes in the memory that a block was launched with; those of sparse
// codecs by EmulatedBlock.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/sparse_table.h"
#include "kernels/cuda/table.h"
#include "tests/gpu/driver/twin.h"
#include "tests/gpu/emulated_block.h"
#include "tests/gpu/emulated_warp.h"

namespace cgx::kernels {
namespace {

using standin::Launch;
using standin::Twin;

template <class T>
const T& parameter(const Launch& launch, size_t index) {
  return *static_cast<const T*>(launch.parameters[index]);
}

// Exactly a team's share, so that AddressSanitizer sees what lies beyond.
std::unique_ptr<uint8_t, void (*)(void*)> shared_memory(size_t bytes) {
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(16, bytes));
  std::memset(memory, 0x5a, bytes);
  return {memory, std::free};
}

// As a kernel's __launch_bounds__ and its teams want it.
void check_lanes(const Launch& launch, uint32_t lanes) {
  if (launch.block[0] != lanes || launch.shared_bytes != 0) std::abort();
}

// body(team, block) for each block of the launch.
template <class Body>
void run_blocks(const Launch& launch, Body body) {
  thread_local const auto fibers = std::make_unique<gpu::Fibers>(EmulatedBlock::kSize);
  for (uint32_t block = 0; block < launch.grid[0]; ++block) {
    EmulatedBlock::Staging staging;
    fibers->run([&](uint32_t lane) {
      EmulatedBlock team(*fibers, staging, lane);
      body(team, block);
    });
  }
}

template <class Codec, class Job>
void run_sparse(const Launch& launch) {
  check_lanes(launch, kSparseLanes);
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  const auto shared = std::make_unique<SparseShared>();
  std::memset(shared.get(), 0x5a, sizeof(*shared));
  run_blocks(launch, [&](EmulatedBlock& team, uint32_t block) {
    run_sparse_buckets<Codec>(team, table, block, *shared);
  });
}

template <class Codec, class Job>
void run_find(const Launch& launch) {
  check_lanes(launch, kFindLanes);
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  for (uint64_t lane = 0; lane < uint64_t{launch.grid[0]} * kFindLanes; ++lane) {
    const auto part = static_cast<uint32_t>(lane / table.count);
    if (part >= table.work.parts_max) break;
    find_entries<Codec>(table, static_cast<uint32_t>(lane % table.count), part);
  }
}

template <class Job>
void run_pack(const Launch& launch) {
  check_lanes(launch, kPackLanes);
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  run_blocks(launch, [&](EmulatedBlock& team, uint32_t block) {
    pack_entries(team, table, block, launch.grid[0]);
  });
}

template <class Codec, class Team, class Job>
void run_dense(const Launch& launch) {
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  const uint32_t team_bytes = parameter<uint32_t>(launch, 1);
  const uint32_t teams = launch.block[0] / Team::kSize;
  if (teams * team_bytes > launch.shared_bytes) std::abort();  // a block's memory ends there
  const auto memory = shared_memory(team_bytes);
  for (uint64_t first = 0; first < uint64_t{launch.grid[0]} * teams; ++first) {
    Team team;
    run_buckets<Codec>(team, table, first, uint64_t{launch.grid[0]} * teams, memory.get());
  }
}

template <class Codec, class Job>
void run_segments(const Launch& launch) {
  if constexpr (kIsSparse<Codec>) {
    run_sparse<Codec, Job>(launch);
  } else {
    run_dense<Codec, EmulatedWarp, Job>(launch);
  }
}

template <class Codec, class Job>
void run_small(const Launch& launch) {
  run_dense<Codec, EmulatedLanes<kSmallLanes>, Job>(launch);
}

template <class Job>
void run_norms(const Launch& launch) {
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  for (uint32_t i = 0; i < launch.grid[0] * launch.block[0] && i < table.count; ++i) {
    sum_norms(table, i);
  }
}

template <class Job>
constexpr uint32_t kBytes[] = {sizeof(cuda::Table<Job>), sizeof(uint32_t)};

constexpr Twin kTwins[] = {
#define TWINS(stem, type, run)                                                       \
  {"cgx_" stem "_encode", run<type, EncodeJob>, kBytes<EncodeJob>, 2},               \
      {"cgx_" stem "_decode", run<type, DecodeJob>, kBytes<DecodeJob>, 2},           \
      {"cgx_" stem "_decode_add", run<type, DecodeAddJob>, kBytes<DecodeAddJob>, 2}, \
      {"cgx_" stem "_reduce", run<type, ReduceJob>, kBytes<ReduceJob>, 2},           \
      {"cgx_" stem "_combine", run<type, CombineJob>, kBytes<CombineJob>, 2},
#define X(stem, family, type) TWINS(#stem, type, run_segments)
#define Q(stem, family, type) X(stem, family, type) TWINS(#stem "_small", type, run_small)
#define F(stem, type)                                                                           \
  {"cgx_" #stem "_find_decode", run_find<type, DecodeJob>, kBytes<DecodeJob>, 1},               \
      {"cgx_" #stem "_find_decode_add", run_find<type, DecodeAddJob>, kBytes<DecodeAddJob>, 1}, \
      {"cgx_" #stem "_find_reduce", run_find<type, ReduceJob>, kBytes<ReduceJob>, 1},           \
      {"cgx_" #stem "_find_combine", run_find<type, CombineJob>, kBytes<CombineJob>, 1},
#include "kernels/cuda/kernels.def"
#undef X
#undef TWINS
    {"cgx_pack_encode", run_pack<EncodeJob>, kBytes<EncodeJob>, 1},
    {"cgx_pack_reduce", run_pack<ReduceJob>, kBytes<ReduceJob>, 1},
    {"cgx_norms_encode", run_norms<EncodeJob>, kBytes<EncodeJob>, 1},
    {"cgx_norms_reduce", run_norms<ReduceJob>, kBytes<ReduceJob>, 1}};

}  // namespace
}  // namespace cgx::kernels

extern "C" cgx::standin::Twins cgx_standin_twins() {
  return {cgx::kernels::kTwins, std::size(cgx::kernels::kTwins)};
}
