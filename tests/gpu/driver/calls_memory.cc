// Device memory of cuMemAlloc, registered host memory, and what lies where.
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "tests/gpu/driver/functions.h"
#include "tests/gpu/driver/queue.h"

using namespace cgx::standin;

namespace {

// Files behind addresses, so that the words in them are known to all processes that map them.
std::vector<HostRange::Piece> pieces_of(uintptr_t from, size_t bytes) {
  std::vector<HostRange::Piece> pieces;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin, end, offset, inode;
    unsigned major, minor;
    if (std::sscanf(line.c_str(), "%" PRIx64 "-%" PRIx64 " %*s %" PRIx64 " %x:%x %" PRIu64, &begin,
                    &end, &offset, &major, &minor, &inode) != 6) {
      continue;
    }
    if (end <= from || begin >= from + bytes) continue;
    const uint64_t file = ((uint64_t{major} << 20 | minor) * 0x9e3779b97f4a7c15u) ^ (inode << 1);
    const uint64_t own = static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15u;
    pieces.push_back({begin, end, inode == 0 ? own : file + offset - begin});
  }
  return pieces;
}

bool overlaps_host(const Process& p, uintptr_t at, size_t bytes) {
  auto next = p.host.lower_bound(at + bytes);
  return next != p.host.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at;
}

// Of the process's own, by the number that all processes share.
Context* owner_of(int device) {
  for (const auto& context : process().contexts) {
    if (context->device == device) return context.get();
  }
  return nullptr;
}

// `owner` is null for host memory.
CUresult attribute_of(CUpointer_attribute attribute, uintptr_t base, size_t bytes, Context* owner,
                      void* value) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<Context**>(value) = owner == nullptr ? current_context() : owner;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = owner == nullptr ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = (owner == nullptr ? current_context() : owner)->ordinal;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  CGX_ENTER(Call::cuMemGetInfo);
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  *total = p.settings.memory;
  *free = *total - std::min(*total, p.used_bytes(current_context()->device));
  return CUDA_SUCCESS;
}

// The end lies at a guard page, up to the alignment.
CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes) {
  CGX_ENTER(Call::cuMemAlloc);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const int device = current_context()->device;
  if (p.used_bytes(device) + round_up(bytes, kPage) > p.settings.memory) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::shared_ptr<Memory> made = Memory::create(bytes, device, true);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t offset = made->bytes() - round_up(bytes, kAlignment);
  const Mapping* const mapping = p.space.add(std::move(made), Kind::kAllocated, offset, bytes, 0);
  if (mapping == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = mapping->base;
  return CUDA_SUCCESS;
}

// Waits for the device, as drivers do.
CUresult cuMemFree_v2(CUdeviceptr memory) {
  CGX_ENTER(Call::cuMemFree);
  if (memory == 0) return CUDA_SUCCESS;
  drain(current_context());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Mapping* const mapping = p.space.find(memory);
  if (mapping == nullptr || mapping->base != memory || mapping->kind != Kind::kAllocated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mapping->memory->imported_elsewhere()) {
    accuse(std::to_string(mapping->bytes) + " bytes are freed while another process has them open");
  }
  p.space.remove(*mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr memory) {
  CGX_ENTER(Call::cuMemGetAddressRange);
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const Mapping* const mapping = p.space.find(memory);
  if (mapping == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = mapping->base;
  if (bytes != nullptr) *bytes = mapping->bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr memory) {
  CGX_ENTER(Call::cuPointerGetAttribute);
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (const Mapping* mapping = p.space.find(memory)) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
      *static_cast<int*>(value) = mapping->kind != Kind::kMapped;
      return CUDA_SUCCESS;
    }
    return attribute_of(attribute, mapping->base, mapping->bytes,
                        owner_of(mapping->memory->device()), value);
  }
  auto next = p.host.upper_bound(memory);
  if (next == p.host.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [base, range] = *std::prev(next);
  if (memory - base >= range.bytes) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(attribute, base, range.bytes, nullptr, value);
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  CGX_ENTER(Call::cuMemHostAlloc);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* const made = mmap(nullptr, round_up(bytes, kPage), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto at = reinterpret_cast<uintptr_t>(made);
  const std::lock_guard lock(process().mutex);
  process().host[at] = {bytes, true, pieces_of(at, bytes)};
  *memory = made;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  CGX_ENTER(Call::cuMemFreeHost);
  drain(current_context());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const auto found = p.host.find(reinterpret_cast<uintptr_t>(memory));
  if (found == p.host.end() || !found->second.allocated) return CUDA_ERROR_INVALID_VALUE;
  munmap(memory, round_up(found->second.bytes, kPage));
  p.host.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  CGX_ENTER(Call::cuMemHostRegister);
  if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto at = reinterpret_cast<uintptr_t>(memory);
  std::vector<HostRange::Piece> pieces = pieces_of(at, bytes);
  if (pieces.empty()) return CUDA_ERROR_INVALID_VALUE;
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (overlaps_host(p, at, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  p.host[at] = {bytes, false, std::move(pieces)};
  return CUDA_SUCCESS;
}

// Whether it waits is not said anywhere: it does here, but nobody may count on it.
CUresult cuMemHostUnregister(void* memory) {
  CGX_ENTER(Call::cuMemHostUnregister);
  Process& p = process();
  {
    const std::lock_guard lock(p.mutex);
    const auto found = p.host.find(reinterpret_cast<uintptr_t>(memory));
    if (found == p.host.end() || found->second.allocated) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    accuse_if_used(Call::cuMemHostUnregister, found->second);
  }
  drain(current_context());
  const std::lock_guard lock(p.mutex);
  p.host.erase(reinterpret_cast<uintptr_t>(memory));
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned) {
  CGX_ENTER(Call::cuMemHostGetDevicePointer);
  if (find_target(reinterpret_cast<uintptr_t>(memory), 1).kind != Target::Kind::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
