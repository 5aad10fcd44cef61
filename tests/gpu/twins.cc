// The kernels' own bodies as twins for the stand-in driver: one for each row of kernels.def and
// operation, run by EmulatedWarp in the memory that a block was launched with.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/table.h"
#include "tests/gpu/driver/twin.h"
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

template <class Codec, class Job>
void run_segments(const Launch& launch) {
  const auto& table = parameter<cuda::Table<Job>>(launch, 0);
  const uint32_t team_bytes = parameter<uint32_t>(launch, 1);
  const uint32_t teams = launch.block[0] / EmulatedWarp::kSize;
  if (teams * team_bytes > launch.shared_bytes) std::abort();  // a block's memory ends there
  const auto memory = shared_memory(team_bytes);
  for (uint64_t first = 0; first < uint64_t{launch.grid[0]} * teams; ++first) {
    EmulatedWarp warp;
    run_buckets<Codec>(warp, table, first, uint64_t{launch.grid[0]} * teams, memory.get());
  }
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
#define X(stem, family, type)                                                                  \
  {"cgx_" #stem "_encode", run_segments<type, EncodeJob>, kBytes<EncodeJob>, 2},               \
      {"cgx_" #stem "_decode", run_segments<type, DecodeJob>, kBytes<DecodeJob>, 2},           \
      {"cgx_" #stem "_decode_add", run_segments<type, DecodeAddJob>, kBytes<DecodeAddJob>, 2}, \
      {"cgx_" #stem "_reduce", run_segments<type, ReduceJob>, kBytes<ReduceJob>, 2},           \
      {"cgx_" #stem "_combine", run_segments<type, CombineJob>, kBytes<CombineJob>, 2},
#include "kernels/cuda/kernels.def"
#undef X
    {"cgx_norms_encode", run_norms<EncodeJob>, kBytes<EncodeJob>, 1},
    {"cgx_norms_reduce", run_norms<ReduceJob>, kBytes<ReduceJob>, 1}};

}  // namespace
}  // namespace cgx::kernels

extern "C" cgx::standin::Twins cgx_standin_twins() {
  return {cgx::kernels::kTwins, std::size(cgx::kernels::kTwins)};
}
