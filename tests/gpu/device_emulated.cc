// This processor as the device: the kernels' own bodies, run by FiberLanes and EmulatedBlock.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/sparse_table.h"
#include "kernels/cuda/table.h"
#include "tests/gpu/device.h"
#include "tests/gpu/emulated_block.h"
#include "tests/gpu/fiber_warp.h"
#include "tests/gpu/operations.h"

namespace cgx::kernels {
namespace {

using cuda::Table;

constexpr uint32_t kTeams = 5;  // that take buckets in turn

template <class Codec, class Team, class Job>
void launch_dense(const Table<Job>& table) {
  const size_t bytes = scratch_bytes<Codec>(table.bucket_max);
  static gpu::Fibers fibers(Team::kSize);
  typename Team::Staging staging;
  for (uint64_t first = 0; first < kTeams; ++first) {
    // Exactly its size, so that AddressSanitizer sees what lies beyond.
    const std::unique_ptr<uint8_t, void (*)(void*)> memory(
        static_cast<uint8_t*>(std::aligned_alloc(16, bytes)), std::free);
    std::memset(memory.get(), 0x5a, bytes);
    fibers.run([&](uint32_t lane) {
      Team team(fibers, staging, lane);
      run_buckets<Codec>(team, table, first, kTeams, memory.get());
    });
  }
}

// body(team) on all lanes of a block.
template <class Body>
void run_block(Body body) {
  static gpu::Fibers fibers(EmulatedBlock::kSize);
  EmulatedBlock::Staging staging;
  fibers.run([&](uint32_t lane) {
    EmulatedBlock team(fibers, staging, lane);
    body(team);
  });
}

template <class Codec, class Job>
void launch_sparse(const Table<Job>& table) {
  for (uint32_t i = 0; !Codec::kDrawn && i < table.count; ++i) {
    if constexpr (kReads<Job>) {
      for (uint32_t p = 0; p < table.work.parts_max; ++p) find_entries<Codec>(table, i, p);
    }
  }
  const auto shared = std::make_unique<SparseShared>();
  std::memset(shared.get(), 0x5a, sizeof(*shared));
  for (uint32_t own = 0; own < table.work.teams; ++own) {
    run_block([&](EmulatedBlock& team) { run_sparse_buckets<Codec>(team, table, own, *shared); });
  }
  if constexpr (kWrites<Job>) {
    for (uint32_t own = 0; own < 2; ++own) {
      run_block([&](EmulatedBlock& team) { pack_entries(team, table, own, 2); });
    }
  }
}

template <class Codec, class Job>
void launch(const Table<Job>& table) {
  if constexpr (requires { Codec::kDrawn; }) {
    launch_sparse<Codec>(table);
  } else {
    using Type = typename KernelOf<Codec>::Type;
    if constexpr (HasPlanes<Type> || HasScales<Type>) {
      if (lanes_for(table.bucket_max) == kSmallLanes) {
        return launch_dense<Type, FiberLanes<kSmallLanes>>(table);
      }
    }
    launch_dense<Type, FiberWarp>(table);
  }
}

// Norms are added after operations that may be asked for them.
template <class Job>
Status run(void (*operation)(const Table<Job>&), const Table<Job>& table) {
  operation(table);
  if constexpr (requires { table.segments->job.norms; }) {
    for (uint32_t i = 0; table.norms && i < table.count; ++i) sum_norms(table, i);
  }
  return {};
}

struct Launches {
#define X(name, job, words) void (*name)(const Table<job>&);
#include "kernels/cuda/operations.def"
#undef X
};
template <class Codec>
struct Emulating {
  static constexpr Launches kOps = {
#define X(name, job, words) launch<Codec, job>,
#include "kernels/cuda/operations.def"
#undef X
  };
};

const Launches& launches_of(const CodecSpec& spec) {
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return stem##Family::ops<Emulating>(spec);
#include "kernels/codecs.def"
#undef X
  }
  std::abort();
}

}  // namespace
}  // namespace cgx::kernels

namespace cgx::gpu {

const bool kDeviceTakesWide = false;

bool device_present() {
  return true;
}
std::string device_name() {
  return "emulated on this processor";
}
void* device_allocate(size_t bytes) {
  return std::calloc(bytes + 1, 1);
}
void device_free(void* memory) {
  std::free(memory);
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void copy_from_device(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

kernels::cuda::Device device_shape() {
  return {.multiprocessors = kernels::kTeams};
}
#define X(name, job, words)                                            \
  Status name(const kernels::cuda::Table<kernels::job>& table) {       \
    return kernels::run(kernels::launches_of(table.spec).name, table); \
  }
#include "kernels/cuda/operations.def"
#undef X

}  // namespace cgx::gpu
