// This processor as the device: the kernels' own bodies, run by FiberLanes and EmulatedBlock.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/codecs/casts.h"
#include "kernels/codecs/fp8.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/maxmin.h"
#include "kernels/cuda/natural.h"
#include "kernels/cuda/sign.h"
#include "kernels/cuda/sparse_table.h"
#include "kernels/cuda/symmetric.h"
#include "kernels/cuda/table.h"
#include "tests/gpu/device.h"
#include "tests/gpu/emulated_block.h"
#include "tests/gpu/fiber_warp.h"

namespace cgx::kernels::cuda {
namespace {

constexpr uint32_t kTeams = 5;  // that take buckets in turn

template <class Codec, class Team, class Job>
int launch_dense(const Table<Job>& table) {
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
  return 0;
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
int launch_sparse(const Table<Job>& table) {
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
  return 0;
}

template <class Codec>
struct Launcher {
  template <class Job>
  static int run(const Device&, const Table<Job>& table, Stream) {
    if constexpr (requires { Codec::kDrawn; }) {
      return launch_sparse<Codec>(table);
    } else {
      using Type = typename KernelOf<Codec>::Type;
      if constexpr (HasPlanes<Type> || HasScales<Type>) {
        if (lanes_for(table.bucket_max) == kSmallLanes) {
          return launch_dense<Type, FiberLanes<kSmallLanes>>(table);
        }
      }
      return launch_dense<Type, FiberWarp>(table);
    }
  }
  template <class Job>
  static int norms(const Table<Job>& table, Stream) {
    for (uint32_t i = 0; table.norms && i < table.count; ++i) sum_norms(table, i);
    return 0;
  }
};
template <class Codec>
using Emulating = LaunchesBy<Launcher<Codec>>;

const Launches* launches_of(const CodecSpec& spec) {
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return &stem##Family::ops<Emulating>(spec);
#include "kernels/codecs.def"
#undef X
  }
  return nullptr;
}

template <class Job>
Status launch(int (*Launches::*operation)(const Device&, const Table<Job>&, Stream),
              const Table<Job>& table) {
  (launches_of(table.spec)->*operation)(Device(), table, nullptr);
  return {};
}

}  // namespace

bool has_kernels(const CodecSpec& spec) {
  return launches_of(spec) != nullptr;
}
Result<Device> describe_device(int) {
  return Device{.multiprocessors = kTeams};
}
Status encode(const Device&, const Table<EncodeJob>& table, Stream) {
  return launch(&Launches::encode, table);
}
Status decode(const Device&, const Table<DecodeJob>& table, Stream) {
  return launch(&Launches::decode, table);
}
Status decode_add(const Device&, const Table<DecodeAddJob>& table, Stream) {
  return launch(&Launches::decode_add, table);
}
Status reduce(const Device&, const Table<ReduceJob>& table, Stream) {
  return launch(&Launches::reduce, table);
}
Status combine(const Device&, const Table<CombineJob>& table, Stream) {
  return launch(&Launches::combine, table);
}

}  // namespace cgx::kernels::cuda

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

}  // namespace cgx::gpu
