#include "daemon/gpu/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <atomic>
#include <string>

namespace cgx::daemon::gpu {
namespace {

using device::CUdeviceptr;

std::string text(uint64_t number) {
  return std::to_string(number);
}

// What shrinks under a mapping ends this process.
Status check_file(int fd, uint64_t bytes, const char* what) {
  struct stat file {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return invalid_argument(std::string(what) + ": not a memfd sealed against shrinking");
  }
  if (::fstat(fd, &file) != 0 || static_cast<uint64_t>(file.st_size) < bytes) {
    return invalid_argument(std::string(what) + " has fewer than " + text(bytes) + " bytes");
  }
  return {};
}

uint64_t random_pattern() {
  uint64_t pattern = 0;
  if (::getrandom(&pattern, sizeof(pattern), 0) != sizeof(pattern)) pattern = 0x9e3779b97f4a7c15;
  return pattern;
}

// What drivers answer to a sound handle where the machine lets none through.
bool lets_none_through(device::CUresult answer) {
  return answer == device::CUDA_ERROR_INVALID_CONTEXT || answer == device::CUDA_ERROR_MAP_FAILED ||
         answer == device::CUDA_ERROR_INVALID_HANDLE || answer == device::CUDA_ERROR_TOO_MANY_PEERS;
}

constexpr uint64_t kPageBytes = uint64_t{wire::kWordsMax} * wire::kWordBytes;

// From one slot of a residual to the other. Whoever encodes into the first one fills it up to eight
// bytes, which are not the second's.
uint64_t stride_of(uint64_t elements) {
  return (elements + 3) / 4 * 4;
}

std::atomic_ref<uint32_t> word_at(const PinnedMemory& words, uint32_t word) {
  return std::atomic_ref<uint32_t>(
      *reinterpret_cast<uint32_t*>(words.host + word * wire::kWordBytes));
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (auto& [number, arena] : arenas_) forget(arena);
  for (auto& [number, memory] : staging_) unpin(memory);
  for (auto& [number, residual] : residuals_) driver_.cuMemFree(residual.memory);
  free_unused();
}

Result<PinnedMemory> DeviceMemory::pin(int fd, uint64_t bytes, const char* what) {
  CGX_RETURN_IF_ERROR(check_file(fd, bytes, what));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, std::string("mapping ") + what);
  }
  PinnedMemory pinned{static_cast<std::byte*>(memory), 0, bytes};
  constexpr unsigned kFlags =
      device::CU_MEMHOSTREGISTER_PORTABLE | device::CU_MEMHOSTREGISTER_DEVICEMAP;
  Status status = driver_.check(driver_.cuMemHostRegister(memory, bytes, kFlags),
                                std::string("pinning ") + text(bytes) + " bytes of " + what);
  if (!status.ok()) {
    ::munmap(memory, bytes);
    return status;
  }
  status = driver_.check(driver_.cuMemHostGetDevicePointer(&pinned.device, memory, 0),
                         std::string("the device's address of ") + what);
  if (status.ok()) return pinned;
  unpin(pinned);
  return status;
}

void DeviceMemory::unpin(PinnedMemory& memory) {
  if (memory.host == nullptr) return;
  driver_.cuMemHostUnregister(memory.host);
  ::munmap(memory.host, memory.bytes);
  memory = {};
}

Result<uint64_t> DeviceMemory::add_arena(const WorkerPacket& packet, UniqueFd words,
                                         UniqueFd memory) {
  if (arenas_.count(packet.number) > 0) return internal_error("an arena of this number is here");
  Arena arena;
  CGX_ASSIGN_OR_RETURN(arena.words, pin(words.get(), kPageBytes, "the page of timeline words"));
  const uint64_t pattern = random_pattern();
  Status status = import(packet, memory, arena);
  if (status.ok()) {
    status =
        driver_.check(driver_.cuMemcpyHtoD(arena.at + packet.pattern_at, &pattern, sizeof(pattern)),
                      "writing the pattern into the arena");
  }
  // From pageable memory a copy returns when that has been read; whoever looks is another process.
  if (status.ok()) {
    status = driver_.check(driver_.cuStreamSynchronize(nullptr), "writing the pattern");
  }
  if (!status.ok()) {
    forget(arena);
    return status;
  }
  arenas_[packet.number] = arena;
  return pattern;
}

Status DeviceMemory::import(const WorkerPacket& packet, const UniqueFd& memory, Arena& arena) {
  arena.way = packet.way;
  arena.bytes = packet.bytes;
  if (packet.bytes < sizeof(uint64_t)) return invalid_argument("an arena of a GPU without bytes");
  if (packet.pattern_at > packet.bytes - sizeof(uint64_t)) {
    return invalid_argument("a pattern at " + text(packet.pattern_at) + " is not in the arena of " +
                            text(packet.bytes) + " bytes");
  }
  switch (packet.way) {
    case wire::ArenaWay::kVmm:
      return import_vmm(packet, memory.get(), arena);
    case wire::ArenaWay::kIpc:
      return import_ipc(packet, arena);
    case wire::ArenaWay::kMemfd:
      break;
  }
  return invalid_argument("memory of a GPU does not come as a memfd");
}

Status DeviceMemory::import_vmm(const WorkerPacket& packet, int fd, Arena& arena) {
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kVmm));
  const std::string what = "the arena of " + text(packet.bytes) + " bytes on the GPU";
  const auto refused = [&](device::CUresult answer, const std::string& step) -> Status {
    const Status status = driver_.check(answer, what + ": " + step);
    const bool theirs = status.code() == StatusCode::kINTERNAL;
    return theirs ? invalid_argument(status.message()) : status;
  };
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  device::CUresult imported = driver_.cuMemImportFromShareableHandle(
      &arena.handle, descriptor, device::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  // What a driver answers to a descriptor of something else. A GPU that has failed says so next.
  if (imported == device::CUDA_ERROR_UNKNOWN) imported = device::CUDA_ERROR_INVALID_VALUE;
  CGX_RETURN_IF_ERROR(refused(imported, "its descriptor is not one of a GPU's memory"));
  CUdeviceptr base = 0;
  CGX_RETURN_IF_ERROR(
      refused(driver_.cuMemAddressReserve(&base, packet.bytes, 0, 0, 0), "reserving addresses"));
  const Status mapped = refused(driver_.cuMemMap(base, packet.bytes, 0, arena.handle, 0),
                                "mapping it; it has another size");
  if (!mapped.ok()) {
    driver_.cuMemAddressFree(base, packet.bytes);
    return mapped;
  }
  arena.base = arena.at = base;
  const device::CUmemAccessDesc access{
      .location = {.type = device::CU_MEM_LOCATION_TYPE_DEVICE, .id = device_},
      .flags = device::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return refused(driver_.cuMemSetAccess(base, packet.bytes, &access, 1), "access to it");
}

Status DeviceMemory::import_ipc(const WorkerPacket& packet, Arena& arena) {
  CGX_RETURN_IF_ERROR(driver_.lacks(device::Feature::kIpc));
  device::CUipcMemHandle handle;
  std::memcpy(handle.reserved, packet.handle.data(), sizeof(handle.reserved));
  const std::string what = "the arena of " + text(packet.bytes) + " bytes by its handle";
  const device::CUresult answer =
      driver_.cuIpcOpenMemHandle(&arena.base, handle, device::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const Status opened = driver_.check(answer, what);
  if (!opened.ok()) {
    arena.base = 0;
    if (lets_none_through(answer)) {
      return {StatusCode::kUNIMPLEMENTED,
              opened.message() +
                  " (the GPU's worker may not open memory of this process: is either in a "
                  "container, or another user's?)"};
    }
    const bool theirs = opened.code() == StatusCode::kINTERNAL;
    return theirs ? invalid_argument(opened.message()) : opened;
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuMemGetAddressRange(&base, &bytes, arena.base), what));
  if (packet.offset > bytes || packet.bytes > bytes - packet.offset) {
    return invalid_argument(what + " at offset " + text(packet.offset) +
                            " ends past its allocation of " + text(bytes));
  }
  arena.at = arena.base + packet.offset;
  return {};
}

void DeviceMemory::forget(Arena& arena) {
  if (arena.base != 0 && arena.way == wire::ArenaWay::kIpc) driver_.cuIpcCloseMemHandle(arena.base);
  if (arena.base != 0 && arena.way == wire::ArenaWay::kVmm) {
    driver_.cuMemUnmap(arena.base, arena.bytes);
    driver_.cuMemAddressFree(arena.base, arena.bytes);
  }
  if (arena.handle != 0) driver_.cuMemRelease(arena.handle);
  if (arena.words.host != nullptr) word_at(arena.words, 0).store(1);  // its maker may free it
  unpin(arena.words);
  arena = {};
}

void DeviceMemory::drop_arena(uint32_t number) {
  auto found = arenas_.extract(number);
  if (!found.empty()) forget(found.mapped());
}

void DeviceMemory::free_words(uint32_t number) {
  const auto found = arenas_.find(number);
  if (found != arenas_.end()) found->second.words_free = true;
}

Status DeviceMemory::add_staging(const WorkerPacket& packet, const UniqueFd& memory) {
  if (staging_.count(packet.number) > 0) return internal_error("a block of this number is here");
  const Result<PinnedMemory> pinned = pin(memory.get(), packet.bytes, "staging memory");
  if (pinned.ok()) staging_[packet.number] = *pinned;
  // Whatever a driver answers to it, a system has a limit there.
  const StatusCode code = pinned.status().code();
  const bool no_room = code == StatusCode::kINTERNAL || code == StatusCode::kUNIMPLEMENTED;
  return no_room ? resource_exhausted(pinned.status().message()) : pinned.status();
}

void DeviceMemory::drop_staging(uint32_t number) {
  auto found = staging_.extract(number);
  if (!found.empty()) unpin(found.mapped());
}

Status DeviceMemory::make_residual(uint32_t number, uint64_t elements) {
  Residual residual{0, elements};
  const uint64_t values = 2 * stride_of(elements), bytes = values * sizeof(float);
  CGX_ASSIGN_OR_RETURN(
      residual.memory,
      allocate(bytes, "a residual of " + text(elements) + " elements, " + text(bytes) + " bytes"));
  Status zero = driver_.check(driver_.cuMemsetD32Async(residual.memory, 0, values, nullptr),
                              "clearing a residual");
  if (zero.ok()) zero = driver_.check(driver_.cuStreamSynchronize(nullptr), "clearing a residual");
  if (!zero.ok()) {
    driver_.cuMemFree(residual.memory);
    return zero;
  }
  residuals_[number] = residual;
  return {};
}

void DeviceMemory::drop_residual(uint32_t number) {
  const auto found = residuals_.extract(number);
  if (!found.empty()) free_later(found.mapped().memory);
}

// Rather late than not at all.
Result<CUdeviceptr> DeviceMemory::allocate(uint64_t bytes, const std::string& what) {
  CUdeviceptr memory = 0;
  device::CUresult made = driver_.cuMemAlloc(&memory, bytes);
  if (made == device::CUDA_ERROR_OUT_OF_MEMORY && !unused_.empty()) {
    free_unused();
    made = driver_.cuMemAlloc(&memory, bytes);
  }
  CGX_RETURN_IF_ERROR(driver_.check(made, what));
  return memory;
}

void DeviceMemory::free_unused() {
  for (const CUdeviceptr memory : unused_) driver_.cuMemFree(memory);
  unused_.clear();
}

Result<void*> DeviceMemory::at(const DevicePlace& place, uint64_t bytes) const {
  const auto found = arenas_.find(place.arena);
  if (found == arenas_.end()) return internal_error("no arena " + text(place.arena));
  if (place.word >= wire::kWordsMax) return internal_error("no such timeline word");
  const Arena& arena = found->second;
  if (place.offset > arena.bytes || bytes > arena.bytes - place.offset) {
    return internal_error(text(bytes) + " bytes at offset " + text(place.offset) +
                          " are not in the arena of " + text(arena.bytes));
  }
  return reinterpret_cast<void*>(arena.at + place.offset);
}

Result<std::span<std::byte>> DeviceMemory::staged(const Staged& bytes) const {
  const auto found = staging_.find(bytes.block);
  if (found == staging_.end()) return internal_error("no staging " + text(bytes.block));
  const PinnedMemory& block = found->second;
  if (bytes.offset > block.bytes || bytes.length > block.bytes - bytes.offset) {
    return internal_error(text(bytes.length) + " bytes at offset " + text(bytes.offset) +
                          " are not in staging of " + text(block.bytes));
  }
  return std::span(reinterpret_cast<std::byte*>(block.device) + bytes.offset, bytes.length);
}

Result<float*> DeviceMemory::residual(uint32_t number, uint32_t slot, uint64_t first,
                                      uint64_t count) const {
  const auto found = residuals_.find(number);
  if (found == residuals_.end()) return internal_error("no residual " + text(number));
  const Residual& residual = found->second;
  if (slot > 1 || first > residual.elements || count > residual.elements - first) {
    return internal_error(text(count) + " elements from " + text(first) +
                          " on are not in a residual of " + text(residual.elements));
  }
  return reinterpret_cast<float*>(residual.memory) + slot * stride_of(residual.elements) + first;
}

bool DeviceMemory::is_written(const DevicePlace& place) const {
  if (place.word == 0 || place.word >= wire::kWordsMax) return true;
  const auto found = arenas_.find(place.arena);
  if (found == arenas_.end() || found->second.words_free) return true;
  const uint32_t now = word_at(found->second.words, place.word).load(std::memory_order_acquire);
  return static_cast<int32_t>(now - place.word_value) >= 0;
}

}  // namespace cgx::daemon::gpu
