#include "client/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "client/deadline.h"
#include "client/memory_limit.h"
#include "client/no_signals.h"

namespace cgx::client {
namespace {

constexpr uint64_t kArenaGranule = 2 << 20;
constexpr uint64_t kPieceBytes = 64 << 20;        // allocated at a time
constexpr uint64_t kFirstOnDeviceMax = 64 << 20;  // whatever the host's first arena has
constexpr uint64_t kArenaBytesMax = 1ull << 46;
constexpr uint64_t kAlignmentMax = 4096;             // a page: mappings are aligned to no more
constexpr uint64_t kImportAlignment = 64;            // as the allocator's
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;  // the daemon adds what forbids holes

Status no_room(uint64_t bytes, const std::string& why) {
  return resource_exhausted("an arena of " + std::to_string(bytes) + " bytes: " + why);
}

// MemAvailable of /proc/meminfo: what can be allocated without swapping. nullopt: unknown.
std::optional<uint64_t> available_bytes() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/meminfo", "re"), std::fclose);
  if (!file) return std::nullopt;
  char line[128];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof(line), file.get())) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return std::nullopt;
}

// Refuses what the kernel would answer with a signal: SIGXFSZ or the out-of-memory killer.
Status check_limits(uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return no_room(bytes, "the file size limit of this process (ulimit -f) is " +
                              std::to_string(limit.rlim_cur) + " bytes");
  }
  const auto available = available_bytes();
  if (available && bytes > *available) {
    return no_room(bytes, "this machine has " + std::to_string(*available) + " bytes available");
  }
  const auto group = memory_left_in_group();
  if (group && bytes > group->bytes) {
    return no_room(bytes, "the memory limit of this process's control group " + group->name +
                              " leaves " + std::to_string(group->bytes) + " bytes");
  }
  return {};
}

// Kernels before 6.11 give up a whole call when a signal comes: under a program's timer it never
// ended.
int allocate_piece(int fd, uint64_t offset, uint64_t bytes) {
  const NoSignals quiet;
  int error;
  do error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

Status allocate_pages(int fd, uint64_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return no_room(bytes, std::string("ftruncate: ") + std::strerror(errno));
  }
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {  // between them signals are taken
    const int error = allocate_piece(fd, done, std::min(kPieceBytes, bytes - done));
    if (error != 0) return no_room(bytes, std::string("fallocate: ") + std::strerror(error));
  }
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    return internal_error(std::string("sealing an arena: ") + std::strerror(errno));
  }
  return {};
}

// Memory that is of no device is always.
bool is_idle(const std::shared_ptr<ArenaMemory>& memory) {
  return memory == nullptr || memory->device() == nullptr || memory->device()->idle();
}

// Null: on the host.
bool lies_on(const ArenaMemory& memory, const wire::DeviceId* device) {
  const DeviceMemory* const on = memory.device();
  return device == nullptr ? on == nullptr : on != nullptr && on->device() == *device;
}

}  // namespace

Result<std::shared_ptr<ArenaMemory>> ArenaMemory::create(uint64_t bytes) {
  if (bytes > kArenaBytesMax) return no_room(bytes, "one arena has at most 64 TiB");
  bytes = (std::max<uint64_t>(bytes, 1) + kArenaGranule - 1) / kArenaGranule * kArenaGranule;
  CGX_RETURN_IF_ERROR(check_limits(bytes));
  UniqueFd fd(::memfd_create("cgx-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return no_room(bytes, std::string("memfd_create: ") + std::strerror(errno));
  CGX_RETURN_IF_ERROR(allocate_pages(fd.get(), bytes));
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (base == MAP_FAILED) return no_room(bytes, std::string("mmap: ") + std::strerror(errno));
  return std::shared_ptr<ArenaMemory>(
      new ArenaMemory(std::move(fd), static_cast<std::byte*>(base), bytes));
}

ArenaMemory::~ArenaMemory() {
  if (device_ == nullptr) ::munmap(base_, bytes_);
}

ArenaHold::ArenaHold(ArenaHold&& other) noexcept
    : set_(std::exchange(other.set_, nullptr)), block_(other.block_), arena_(other.arena_) {}

ArenaHold& ArenaHold::operator=(ArenaHold&& other) noexcept {
  if (this == &other) return *this;
  end();
  set_ = std::exchange(other.set_, nullptr);
  block_ = other.block_;
  arena_ = other.arena_;
  return *this;
}

void ArenaHold::end() {
  if (ArenaSet* const set = std::exchange(set_, nullptr)) set->drop(arena_, *block_);
}

// The next arena adds an eighth to what there is: 64 arenas from 64 MiB on hold 370 GB, and at most
// an eighth of a session's memory is mapped in vain.
uint64_t ArenaGrowth::bytes() const {
  return std::max({need, first, mapped / 8});
}

ArenaSet::ArenaSet(uint64_t first_bytes, Announce announce, size_t arenas_max, Drop drop)
    : first_bytes_(first_bytes),
      announce_(std::move(announce)),
      drop_(std::move(drop)),
      arenas_max_(arenas_max) {
  arenas_.reserve(arenas_max);
}

// A worker that has died is waited for once, however many it has left open.
ArenaSet::~ArenaSet() {
  if (abandoned_) return;
  const auto until = std::make_shared<Deadline>(deadline_in_ms(DeviceMemory::kWorkerEndsMs));
  const MutexLock lock(mutex_);
  for (const Arena& arena : arenas_) {
    const bool there = arena.memory != nullptr && arena.memory->device() != nullptr;
    if (there) arena.memory->device()->wait_at_end(until);
  }
}

Result<void*> ArenaSet::allocate(uint64_t bytes, uint64_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
    return invalid_argument("alignment " + std::to_string(alignment) +
                            " must be a power of two up to " + std::to_string(kAlignmentMax));
  }
  if (void* memory = try_allocate(nullptr, bytes, alignment)) return memory;
  const MutexLock growing(grow_mutex_);
  // Another thread may have grown it.
  if (void* memory = try_allocate(nullptr, bytes, alignment)) return memory;
  CGX_RETURN_IF_ERROR(grow(bytes));
  if (void* memory = try_allocate(nullptr, bytes, alignment)) return memory;
  return full(bytes);
}

Result<void*> ArenaSet::allocate_on(const wire::DeviceId& device, uint64_t bytes,
                                    uint64_t alignment, const MakeDevice& make) {
  if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
    return invalid_argument("alignment " + std::to_string(alignment) +
                            " must be a power of two up to " + std::to_string(kAlignmentMax));
  }
  if (void* memory = try_allocate(&device, bytes, alignment)) return memory;
  const MutexLock growing(grow_mutex_);
  if (void* memory = try_allocate(&device, bytes, alignment)) return memory;
  CGX_RETURN_IF_ERROR(add_on(device, bytes, make));
  if (void* memory = try_allocate(&device, bytes, alignment)) return memory;
  return full(bytes);
}

Result<uint32_t> ArenaSet::arena_on(const wire::DeviceId& device, const MakeDevice& make) {
  const MutexLock growing(grow_mutex_);
  std::optional<uint32_t> arena = usable_on(device);
  if (!arena) {
    CGX_RETURN_IF_ERROR(add_on(device, 1, make));
    arena = usable_on(device);
  }
  return arena.value();
}

std::optional<uint32_t> ArenaSet::usable_on(const wire::DeviceId& device) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < arenas_.size(); ++i) {
    if (arenas_[i].memory == nullptr || arenas_[i].imported()) continue;  // may be dropped
    const DeviceMemory* const on = arenas_[i].memory->device();
    if (arenas_[i].usable && !arenas_[i].lost && on != nullptr && on->device() == device) {
      return static_cast<uint32_t>(i);
    }
  }
  return std::nullopt;
}

Result<uint32_t> ArenaSet::arena_instead(const wire::DeviceId& device) {
  const std::shared_ptr<ArenaMemory> one = lose(device);
  return arena_on(device, [&one](wire::ArenaWay way, uint64_t bytes) {
    return one->device()->another(way, bytes);
  });
}

// One of them.
std::shared_ptr<ArenaMemory> ArenaSet::lose(const wire::DeviceId& device) {
  const MutexLock lock(mutex_);
  std::shared_ptr<ArenaMemory> one;
  for (Arena& arena : arenas_) {
    const DeviceMemory* const on = arena.memory == nullptr ? nullptr : arena.memory->device();
    if (on == nullptr || on->device() != device) continue;
    arena.lost = true;
    one = arena.memory;
  }
  return one;
}

size_t ArenaSet::count() {
  const MutexLock lock(mutex_);
  return arenas_.size();
}

// What cannot be shared is not tried again: not every thread that asks has the GPU's context.
Status ArenaSet::add_on(const wire::DeviceId& device, uint64_t bytes, const MakeDevice& make) {
  const auto known = unshareable_.find(device);
  if (known != unshareable_.end()) return known->second;
  const uint64_t first = std::min(first_bytes_, kFirstOnDeviceMax);
  const ArenaGrowth growth{.need = bytes, .first = first, .mapped = mapped_bytes(&device)};
  Status added = try_ways(bytes, growth.bytes(), make);
  if (added.code() == StatusCode::kUNIMPLEMENTED) unshareable_.emplace(device, added);
  return added;
}

// The ways that memory of a GPU can go, in the order in which they are tried.
Status ArenaSet::try_ways(uint64_t bytes, uint64_t wanted, const MakeDevice& make) {
  if (count() == arenas_max_) return full(bytes);
  Status first;
  for (const wire::ArenaWay way : {wire::ArenaWay::kVmm, wire::ArenaWay::kIpc}) {
    Result<std::unique_ptr<DeviceMemory>> made = make(way, wanted);
    const bool too_large =
        made.status().code() == StatusCode::kRESOURCE_EXHAUSTED && wanted > bytes;
    if (too_large) made = make(way, bytes);
    Status status = made.status();
    if (status.ok()) status = announce(std::make_shared<ArenaMemory>(*std::move(made)));
    if (status.ok()) return {};
    if (!first.ok()) return {status.code(), first.message() + "; by handle: " + status.message()};
    first = std::move(status);
    const bool another =
        first.code() == StatusCode::kUNIMPLEMENTED || first.code() == StatusCode::kINVALID_ARGUMENT;
    if (!another) break;
  }
  return first;
}

void* ArenaSet::try_allocate(const wire::DeviceId* device, uint64_t bytes, uint64_t alignment) {
  const MutexLock lock(mutex_);
  for (Arena& arena : arenas_) {
    if (arena.memory == nullptr || arena.imported()) continue;
    if (!lies_on(*arena.memory, device) || !arena.usable || arena.lost) continue;
    if (const auto offset = arena.allocator.allocate(bytes, alignment)) {
      return arena.memory->base() + *offset;
    }
  }
  return nullptr;
}

Status ArenaSet::grow(uint64_t bytes) {
  if (count() == arenas_max_) return full(bytes);
  const ArenaGrowth growth{.need = bytes, .first = first_bytes_, .mapped = mapped_bytes(nullptr)};
  const uint64_t wanted = growth.bytes();
  const Status status = add(wanted);
  const bool too_large = status.code() == StatusCode::kRESOURCE_EXHAUSTED && wanted > bytes;
  return too_large ? add(bytes) : status;
}

// Only grow_mutex_ is held: locating memory must not wait for the daemon.
Status ArenaSet::add(uint64_t bytes) {
  CGX_ASSIGN_OR_RETURN(auto memory, ArenaMemory::create(bytes));
  return announce(std::move(memory));
}

// The next one, or one that an imported arena of the same device has had.
uint32_t ArenaSet::number_for(const ArenaMemory& memory) {
  const MutexLock lock(mutex_);
  const auto free = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& each) {
    return each.memory == nullptr && memory.device() != nullptr &&
           each.device == memory.device()->device();
  });
  return static_cast<uint32_t>(free - arenas_.begin());
}

// What the daemon has taken keeps its number, even if it turns out to be of no use; so does what it
// may still take, having not answered in time.
Status ArenaSet::announce(std::shared_ptr<ArenaMemory> memory) {
  const uint32_t number = number_for(*memory);
  if (number == arenas_max_) return full(memory->bytes());
  DeviceMemory* const device = memory->device();
  Status status = announce_(number, *memory);
  if (!status.ok() && device != nullptr) static_cast<void>(device->put_back().ok());
  if (!status.ok() && status.code() != StatusCode::kTIMED_OUT) return status;
  if (status.ok() && device != nullptr) status = device->check_pattern();
  const MutexLock lock(mutex_);
  const bool whole = memory->device() != nullptr && memory->device()->imported();
  const uint64_t rest = whole ? -memory->bytes() % kImportAlignment : 0;  // blocks say how far
  Allocator allocator(memory->bytes() + rest);
  if (number == arenas_.size()) {
    arenas_.push_back({std::move(memory), std::move(allocator), status.ok()});
  } else {
    arenas_[number] = {std::move(memory), std::move(allocator), status.ok()};
  }
  return status;
}

Status ArenaSet::import(const wire::DeviceId& device, const void* memory, uint64_t bytes,
                        const MakeImport& make) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (bytes < sizeof(uint64_t) || address % kImportAlignment != 0) {
    return invalid_argument("the memory to import, " + std::to_string(bytes) +
                            " bytes, must have 8 bytes or more and begin at a multiple of " +
                            std::to_string(kImportAlignment));
  }
  const MutexLock growing(grow_mutex_);
  if (const std::optional<Status> known = import_again(memory, bytes)) return *known;
  const auto refused = unshareable_.find(device);
  if (refused != unshareable_.end()) return refused->second;
  CGX_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> made, make());
  const auto taken = std::make_shared<ArenaMemory>(std::move(made));
  const Status status = announce(taken);
  if (status.ok()) return import_again(memory, bytes).value();
  if (status.code() == StatusCode::kTIMED_OUT) return status;      // there is nothing to drop yet
  if (const std::optional<uint32_t> number = number_of(*taken)) {  // of no use, but open there
    CGX_RETURN_IF_ERROR(drop_import(*number));
  }
  return status;
}

std::optional<uint32_t> ArenaSet::number_of(const ArenaMemory& memory) {
  const MutexLock lock(mutex_);
  for (uint32_t i = 0; i < arenas_.size(); ++i) {
    if (arenas_[i].memory.get() == &memory) return i;
  }
  return std::nullopt;
}

std::optional<Status> ArenaSet::import_again(const void* memory, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  if (!index) return std::nullopt;
  Arena& arena = arenas_[*index];
  if (!arena.imported() || !arena.usable) {
    return invalid_argument("the memory to import is in the arena already");
  }
  const uint64_t offset = arena.offset_of(memory);
  if (bytes > arena.memory->bytes() - offset) {
    return invalid_argument("the memory to import needs " + std::to_string(bytes) +
                            " bytes and has " + std::to_string(arena.memory->bytes() - offset) +
                            " to the end of its allocation of " +
                            std::to_string(arena.memory->bytes()));
  }
  Allocator::Block* block = arena.allocator.find(offset);
  const bool same = block != nullptr && block->offset == offset && block->bytes == bytes;
  if (!same && !arena.allocator.take(offset, bytes)) {
    return invalid_argument("the memory to import, " + std::to_string(bytes) +
                            " bytes, is in part of memory that is imported already");
  }
  ++arena.allocator.find(offset)->imports;
  return Status();
}

// The one that begins here.
Allocator::Block* ArenaSet::find_import(const void* memory) {
  const auto index = find(memory);
  if (!index || !arenas_[*index].imported()) return nullptr;
  const uint64_t offset = arenas_[*index].offset_of(memory);
  Allocator::Block* const block = arenas_[*index].allocator.find(offset);
  return block != nullptr && block->offset == offset ? block : nullptr;
}

bool ArenaSet::named(const void* memory) {
  const MutexLock lock(mutex_);
  const Allocator::Block* const block = find_import(memory);
  return block != nullptr && block->holds > 0;
}

bool ArenaSet::idle(const void* memory) {
  return is_idle(holder(memory));
}

// Without the mutex: it may wait for the driver.
bool ArenaSet::idle() {
  std::vector<std::shared_ptr<ArenaMemory>> all;
  {
    const MutexLock lock(mutex_);
    for (const Arena& arena : arenas_) all.push_back(arena.memory);
  }
  return std::all_of(all.begin(), all.end(), is_idle);
}

Result<bool> ArenaSet::try_end_import(const void* memory) {
  const MutexLock growing(grow_mutex_);
  const bool idle = this->idle(memory);
  uint32_t number = 0;
  {
    const MutexLock lock(mutex_);
    Allocator::Block* const block = find_import(memory);
    if (block == nullptr) {
      return invalid_argument(
          "the memory does not begin where one that cgx_arena_import took does");
    }
    number = *find(memory);
    Arena& arena = arenas_[number];
    const bool last = block->imports == 1;
    if (last && (block->holds > 0 || !idle)) return false;
    if (!last || arena.allocator.allocated_count() > 1) {
      if (--block->imports == 0) arena.allocator.release(block->offset);
      return true;
    }
    arena.usable = false;  // this import is undone when the daemon has closed the arena
  }
  CGX_RETURN_IF_ERROR(drop_import(number));
  return true;
}

Status ArenaSet::drop_import(uint32_t arena) {
  CGX_RETURN_IF_ERROR(drop_(arena));
  std::shared_ptr<ArenaMemory> gone;  // ends without the mutex
  const MutexLock lock(mutex_);
  arenas_[arena].memory->device()->dropped();
  arenas_[arena].device = arenas_[arena].memory->device()->device();
  gone = std::move(arenas_[arena].memory);
  return {};
}

bool ArenaSet::on_device(const void* memory) {
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  if (!index || arenas_[*index].memory->device() == nullptr || arenas_[*index].lost) return false;
  if (!arenas_[*index].imported()) return true;
  if (!arenas_[*index].usable) return false;
  return arenas_[*index].allocator.find(arenas_[*index].offset_of(memory)) != nullptr;
}

bool ArenaSet::lost(const void* memory) {
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  return index && arenas_[*index].lost;
}

void ArenaSet::drop(uint8_t arena, Allocator::Block& block) {
  if (abandoned_) return;
  const MutexLock lock(mutex_);
  arenas_[arena].allocator.drop(block);
}

uint64_t ArenaSet::mapped_bytes(const wire::DeviceId* device) {
  const MutexLock lock(mutex_);
  uint64_t mapped = 0;
  for (const Arena& arena : arenas_) {
    if (arena.memory == nullptr || arena.imported()) continue;
    if (lies_on(*arena.memory, device)) mapped += arena.memory->bytes();
  }
  return mapped;
}

Status ArenaSet::full(uint64_t bytes) {
  const MutexLock lock(mutex_);
  uint64_t largest = 0, free = 0, total = 0, waiting = 0;
  for (const Arena& arena : arenas_) {
    if (arena.memory == nullptr || arena.imported()) continue;
    largest = std::max(largest, arena.allocator.largest_free());
    free += arena.allocator.free_bytes();
    total += arena.memory->bytes();
    waiting += arena.allocator.waiting_bytes();
  }
  return {StatusCode::kARENA_FULL,
          "no room for " + std::to_string(bytes) + " bytes: " + std::to_string(arenas_.size()) +
              " arenas of " + std::to_string(total) + " bytes have " + std::to_string(free) +
              " free, at most " + std::to_string(largest) + " in one piece" +
              (waiting == 0 ? "" : ", " + std::to_string(waiting) + " wait for unfinished calls") +
              "; open the session with a larger arena_bytes"};
}

std::optional<uint8_t> ArenaSet::find(const void* memory) const {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  for (size_t i = 0; i < arenas_.size(); ++i) {
    if (arenas_[i].memory == nullptr) continue;
    const auto base = reinterpret_cast<uintptr_t>(arenas_[i].memory->base());
    if (address >= base && address - base < arenas_[i].memory->bytes()) {
      return static_cast<uint8_t>(i);
    }
  }
  return std::nullopt;
}

Status ArenaSet::release(const void* memory) {
  if (abandoned_) return {};
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  if (index && !arenas_[*index].imported()) {
    Arena& arena = arenas_[*index];
    if (arena.allocator.release(arena.offset_of(memory))) return {};
  }
  return invalid_argument("the memory to free is not one that cgx_arena_alloc returned");
}

Result<ArenaPlace> ArenaSet::locate(const void* memory, uint64_t bytes, const char* what) {
  if (bytes == 0) return ArenaPlace{};
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  if (!index) return invalid_argument(std::string(what) + " is not in the arena");
  Arena& arena = arenas_[*index];
  const uint64_t offset = arena.offset_of(memory);
  Allocator::Block* const block = arena.allocator.find(offset);
  if (!block || (arena.imported() && !arena.usable)) {
    return invalid_argument(
        std::string(what) +
        " is in the arena, but not in memory of cgx_arena_alloc; was it freed?");
  }
  const uint64_t before = offset - block->offset;
  const uint64_t room = block->bytes - std::min(before, block->bytes);
  if (bytes > room) {
    return invalid_argument(std::string(what) + " needs " + std::to_string(bytes) +
                            " bytes and has " + std::to_string(room) +
                            " to the end of its allocation of " + std::to_string(block->bytes));
  }
  arena.allocator.hold(*block);
  return ArenaPlace{*index, offset, ArenaHold(*this, *index, *block)};
}

std::shared_ptr<ArenaMemory> ArenaSet::holder(const void* memory) {
  const MutexLock lock(mutex_);
  const auto index = find(memory);
  return index ? arenas_[*index].memory : nullptr;
}

}  // namespace cgx::client
