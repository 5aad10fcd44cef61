// Everything a worker's kernels may touch: arenas of trainers, staging of cgxd, residuals. Knows
// where each lies in this process, and hands out addresses only of what lies within.
//
// Thread rule: the worker's main thread. Nothing is allocated, registered or imported between the
// packets that ask for it. A driver that frees memory waits for all streams: what goes in between
// is freed when nothing is under way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/gpu/jobs.h"
#include "proto/device/driver.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon::gpu {

// Memory of this process that the driver has pinned: two addresses of the same bytes.
struct PinnedMemory {
  std::byte* host = nullptr;
  device::CUdeviceptr device = 0;
  uint64_t bytes = 0;
};

class DeviceMemory {
 public:
  explicit DeviceMemory(const device::Driver& driver, device::CUdevice device)
      : driver_(driver), device_(device) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  // Writes the pattern that the trainer will look for in the arena, and returns it.
  Result<uint64_t> add_arena(const WorkerPacket& packet, UniqueFd words, UniqueFd memory);
  void drop_arena(uint32_t number);
  void free_words(uint32_t number);
  Status add_staging(const WorkerPacket& packet, const UniqueFd& memory);
  void drop_staging(uint32_t number);
  Status make_residual(uint32_t number, uint64_t elements);
  void drop_residual(uint32_t number);
  // Of the device; `what` names it where there is none.
  Result<device::CUdeviceptr> allocate(uint64_t bytes, const std::string& what);
  void free_later(device::CUdeviceptr memory) { unused_.push_back(memory); }
  // Waits for the streams: when nothing is under way.
  void free_unused();

  Result<void*> at(const DevicePlace& place, uint64_t bytes) const;
  Result<std::span<std::byte>> staged(const Staged& bytes) const;
  Result<float*> residual(uint32_t number, uint32_t slot, uint64_t first, uint64_t count) const;
  // The place's word has its value, or nobody will write it, or nobody will find the place.
  bool is_written(const DevicePlace& place) const;

 private:
  struct Arena {
    device::CUdeviceptr base = 0;  // of what was imported
    device::CUdeviceptr at = 0;    // of the arena in it
    uint64_t bytes = 0;
    wire::ArenaWay way = wire::ArenaWay::kVmm;
    device::CUmemGenericAllocationHandle handle = 0;
    PinnedMemory words;
    bool words_free = false;
  };
  struct Residual {
    device::CUdeviceptr memory = 0;
    uint64_t elements = 0;
  };

  Status import(const WorkerPacket& packet, const UniqueFd& memory, Arena& arena);
  Status import_vmm(const WorkerPacket& packet, int fd, Arena& arena);
  Status import_ipc(const WorkerPacket& packet, Arena& arena);
  void forget(Arena& arena);
  Result<PinnedMemory> pin(int fd, uint64_t bytes, const char* what);
  void unpin(PinnedMemory& memory);

  const device::Driver& driver_;
  const device::CUdevice device_;
  std::map<uint32_t, Arena> arenas_;
  std::map<uint32_t, PinnedMemory> staging_;
  std::map<uint32_t, Residual> residuals_;
  std::vector<device::CUdeviceptr> unused_;
};

}  // namespace cgx::daemon::gpu
