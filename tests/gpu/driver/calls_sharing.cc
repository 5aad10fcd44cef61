// Memory that several processes see: by a handle of 64 bytes, and as a descriptor.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/gpu/driver/functions.h"
#include "tests/gpu/driver/queue.h"

using namespace cgx::standin;

namespace {

// What is written in a handle. The maker's descriptor is opened anew, so the maker has to live.
struct Ticket {
  char magic[8];
  int32_t pid, fd;
  uint64_t inode, offset, bytes;
  uint64_t address;  // the maker's; an importer gets another one
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle));
constexpr char kMagic[8] = "cgx-ipc";

uint64_t inode_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

std::shared_ptr<Memory> open_ticket(const Ticket& ticket) {
  const std::string path =
      "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const bool same = inode_of(fd) == ticket.inode;
  std::shared_ptr<Memory> memory = Memory::adopt(fd);
  return same ? memory : nullptr;
}

Mapping* opened_before(Space& space, const Memory& memory) {
  for (const auto& [base, mapping] : space.mappings()) {
    if (mapping.kind == Kind::kImported && mapping.memory->identity() == memory.identity()) {
      return space.find(base);
    }
  }
  return nullptr;
}

// The reservation that holds all of these addresses.
bool reserved(const Process& p, uintptr_t address, size_t bytes) {
  auto next = p.reservations.upper_bound(address);
  if (next == p.reservations.begin()) return false;
  const auto& [base, size] = *std::prev(next);
  return address - base + bytes <= size;
}

bool described(const CUmemAllocationProp* kind) {
  return kind != nullptr && kind->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         kind->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         context_of(kind->location.id) != nullptr;
}

CUresult without_vmm() {
  return process().settings.without_vmm ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult without_ipc() {
  return process().settings.without_ipc ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

#define CGX_UNLESS(refusal) \
  if (const CUresult refused = refusal; refused != CUDA_SUCCESS) return refused

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr memory) {
  CGX_ENTER(Call::cuIpcGetMemHandle);
  CGX_UNLESS(without_ipc());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const Mapping* const mapping = p.space.find(memory);
  if (mapping == nullptr || mapping->kind != Kind::kAllocated) return CUDA_ERROR_INVALID_VALUE;
  Ticket ticket = {{},
                   getpid(),
                   mapping->memory->fd(),
                   inode_of(mapping->memory->fd()),
                   mapping->offset,
                   mapping->bytes,
                   mapping->base};
  std::memcpy(ticket.magic, kMagic, sizeof(kMagic));
  *handle = {};
  std::memcpy(handle, &ticket, sizeof(ticket));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* memory, CUipcMemHandle handle, unsigned) {
  CGX_ENTER(Call::cuIpcOpenMemHandle);
  CGX_UNLESS(without_ipc());
  Ticket ticket;
  std::memcpy(&ticket, &handle, sizeof(ticket));
  if (std::memcmp(ticket.magic, kMagic, sizeof(kMagic)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (ticket.pid == getpid()) {
    accuse("a memory handle is opened by the process that made it");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const std::shared_ptr<Memory> found = open_ticket(ticket);
  if (found == nullptr || ticket.offset + ticket.bytes > found->bytes()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Mapping* mapping = opened_before(p.space, *found);
  if (mapping != nullptr) {
    ++mapping->opens;
  } else {
    found->lock_as_importer();
    mapping = p.space.add(found, Kind::kImported, ticket.offset, ticket.bytes, ticket.address);
    if (mapping == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *memory = mapping->base;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr memory) {
  CGX_ENTER(Call::cuIpcCloseMemHandle);
  CGX_UNLESS(without_ipc());
  drain(current_context());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Mapping* const mapping = p.space.find(memory);
  if (mapping == nullptr || mapping->base != memory || mapping->kind != Kind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--mapping->opens == 0) p.space.remove(*mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* kind,
                                       CUmemAllocationGranularity_flags) {
  CGX_ENTER(Call::cuMemGetAllocationGranularity);
  CGX_UNLESS(without_vmm());
  if (!described(kind)) return CUDA_ERROR_INVALID_VALUE;
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* kind, unsigned long long flags) {
  CGX_ENTER(Call::cuMemCreate);
  CGX_UNLESS(without_vmm());
  if (!described(kind) || bytes == 0 || bytes % kGranularity != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const int device = context_of(kind->location.id)->device;
  if (p.used_bytes(device) + bytes > p.settings.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool exportable = kind->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::shared_ptr<Memory> made = Memory::create(bytes, device, exportable);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = p.next_handle++;
  p.handles[*handle] = {std::move(made), 1};
  return CUDA_SUCCESS;
}

// Mappings keep the memory.
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CGX_ENTER(Call::cuMemRelease);
  CGX_UNLESS(without_vmm());
  const std::lock_guard lock(process().mutex);
  const auto found = process().handles.find(handle);
  if (found == process().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) process().handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long) {
  CGX_ENTER(Call::cuMemAddressReserve);
  CGX_UNLESS(without_vmm());
  if (bytes == 0 || bytes % kGranularity != 0 || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uintptr_t at = reserve_pages(bytes, std::max(alignment, kGranularity));
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(process().mutex);
  process().reservations[at] = bytes;
  *address = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  CGX_ENTER(Call::cuMemAddressFree);
  CGX_UNLESS(without_vmm());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const auto found = p.reservations.find(address);
  if (found == p.reservations.end() || found->second != bytes || p.space.overlaps(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release_pages(address, bytes);
  p.reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CGX_ENTER(Call::cuMemMap);
  CGX_UNLESS(without_vmm());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const auto found = p.handles.find(handle);
  if (found == p.handles.end() || offset != 0 || flags != 0 || bytes % kGranularity != 0 ||
      bytes > found->second.memory->bytes() || !reserved(p, address, bytes) ||
      p.space.overlaps(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  p.space.add_at(address, found->second.memory, bytes);
  return CUDA_SUCCESS;
}

// Waits for nothing, unlike cuMemFree.
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CGX_ENTER(Call::cuMemUnmap);
  CGX_UNLESS(without_vmm());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Mapping* const mapping = p.space.find(address);
  if (mapping == nullptr || mapping->base != address || mapping->bytes != bytes ||
      mapping->kind != Kind::kMapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  accuse_if_used(Call::cuMemUnmap, *mapping);
  p.space.remove(*mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  CGX_ENTER(Call::cuMemSetAccess);
  CGX_UNLESS(without_vmm());
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Mapping* const mapping = p.space.find(address);
  if (mapping == nullptr || mapping->base != address || mapping->bytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  p.space.make_accessible(*mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  CGX_ENTER(Call::cuMemExportToShareableHandle);
  CGX_UNLESS(without_vmm());
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  const auto found = p.handles.find(handle);
  if (found == p.handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !found->second.memory->exportable()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<int*>(descriptor) = fcntl(found->second.memory->fd(), F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

// `descriptor` is the number itself, cast to a pointer; the caller keeps and closes it.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                        CUmemAllocationHandleType type) {
  CGX_ENTER(Call::cuMemImportFromShareableHandle);
  CGX_UNLESS(without_vmm());
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto number = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  const int fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Memory> found = Memory::adopt(fd);
  if (found == nullptr || !found->exportable()) return CUDA_ERROR_UNKNOWN;  // as a driver says
  if (found->made_here()) accuse("a descriptor of memory is imported by the process that made it");
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  *handle = p.next_handle++;
  p.handles[*handle] = {std::move(found), 1};
  return CUDA_SUCCESS;
}
