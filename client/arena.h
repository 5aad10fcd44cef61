// Arenas: the memory a session shares with its daemon.
//
// An ArenaMemory is one sealed, fully allocated memfd and its mapping; whoever holds the shared_ptr
// last unmaps it, so views of it may outlive the session. An ArenaSet is a session's arenas (at
// most kArenasMax, added on demand) with one allocator each.
// Thread rule: any thread. Invariant:
// memory that the daemon may still read or write is not given out again: whatever names it (a
// call, a submit, a tensor's home) has an ArenaHold, and freed memory waits for the last one.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "client/allocator.h"
#include "client/device_memory.h"
#include "proto/wire/mutex.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"

namespace cgx::client {

class ArenaMemory {
 public:
  // RESOURCE_EXHAUSTED names what was asked for and what the machine has.
  static Result<std::shared_ptr<ArenaMemory>> create(uint64_t bytes);
  explicit ArenaMemory(std::unique_ptr<DeviceMemory> device)
      : base_(device->base()), bytes_(device->bytes()), device_(std::move(device)) {}
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  DeviceMemory* device() const { return device_.get(); }  // null: on the host

 private:
  ArenaMemory(UniqueFd fd, std::byte* base, uint64_t bytes)
      : fd_(std::move(fd)), base_(base), bytes_(bytes) {}

  UniqueFd fd_;
  std::byte* base_;
  uint64_t bytes_;
  std::unique_ptr<DeviceMemory> device_;
};

class ArenaSet;

// Keeps one allocation from being given out again, for as long as it lives.
class ArenaHold {
 public:
  ArenaHold() = default;
  ArenaHold(ArenaHold&& other) noexcept;
  ArenaHold& operator=(ArenaHold&& other) noexcept;
  ~ArenaHold() { end(); }

 private:
  friend class ArenaSet;
  ArenaHold(ArenaSet& set, uint8_t arena, Allocator::Block& block)
      : set_(&set), block_(&block), arena_(arena) {}
  void end();

  ArenaSet* set_ = nullptr;
  Allocator::Block* block_ = nullptr;
  uint8_t arena_ = 0;
};

// A place in a session's arenas, as records name it.
struct ArenaPlace {
  uint8_t arena = 0;
  uint64_t offset = 0;
  ArenaHold hold;
};

// What one submit or call names.
struct ArenaHolds {
  ArenaHold in, out;
};

// How large the next arena is, when `mapped` bytes are there and one allocation of `need` has to
// fit.
struct ArenaGrowth {
  uint64_t need = 0, first = 0, mapped = 0;
  uint64_t bytes() const;
};

class ArenaSet {
 public:
  // `announce` tells the daemon about a new arena and answers when the daemon has mapped it.
  using Announce = std::function<Status(uint32_t arena, const ArenaMemory& memory)>;
  // `drop` tells it to close an imported one.
  using Drop = std::function<Status(uint32_t arena)>;
  ArenaSet(uint64_t first_bytes, Announce announce, size_t arenas_max = wire::kArenasMax,
           Drop drop = nullptr);
  ~ArenaSet();

  Result<void*> allocate(uint64_t bytes, uint64_t alignment);
  // In memory of a device, of which `make` makes more.
  using MakeDevice =
      std::function<Result<std::unique_ptr<DeviceMemory>>(wire::ArenaWay way, uint64_t bytes)>;
  Result<void*> allocate_on(const wire::DeviceId& device, uint64_t bytes, uint64_t alignment,
                            const MakeDevice& make);
  // The device's worker has died: its arenas are not used any more, and what lies in them is
  // copied. A new one is made in their context, as this thread may have none.
  Result<uint32_t> arena_instead(const wire::DeviceId& device);
  // An arena on the device; one is added if there is none.
  Result<uint32_t> arena_on(const wire::DeviceId& device, const MakeDevice& make);
  // Memory of a device that the caller made; `make` takes all of the allocation it lies in, once.
  using MakeImport = std::function<Result<std::unique_ptr<DeviceMemory>>()>;
  Status import(const wire::DeviceId& device, const void* memory, uint64_t bytes,
                const MakeImport& make);
  // Undoes one import. True: nobody names what it imported, nor what else was of its allocation,
  // which the daemon has closed. False: something names it, or a stream has still to write its
  // word, and nothing was done.
  Result<bool> try_end_import(const void* memory);
  // Whether something names what one import took.
  bool named(const void* memory);
  // Streams have done all that was handed over of this imported memory's allocation.
  bool idle(const void* memory);
  // The same of all memory of devices.
  bool idle();
  // Whether a device's worker has it.
  bool on_device(const void* memory);
  // Whether one that has died had it.
  bool lost(const void* memory);
  // At once, or with the last hold on it.
  Status release(const void* memory);
  // INVALID_ARGUMENT unless the whole range lies in one allocation; `what` names it in the message.
  // An empty range may be anywhere.
  Result<ArenaPlace> locate(const void* memory, uint64_t bytes, const char* what);
  std::shared_ptr<ArenaMemory> holder(const void* memory);
  // In a forked child: holds end without effect, because the mutex may be locked for ever.
  void abandon() { abandoned_ = true; }

 private:
  friend class ArenaHold;
  struct Arena {
    std::shared_ptr<ArenaMemory> memory;  // null: dropped
    Allocator allocator;
    bool usable = true, lost = false;
    wire::DeviceId device{};  // dropped: another one there may have its number
    bool imported() const {
      return memory != nullptr && memory->device() != nullptr && memory->device()->imported();
    }
    // REQUIRES: find() said that the place is in it.
    uint64_t offset_of(const void* place) const {
      return static_cast<uint64_t>(static_cast<const std::byte*>(place) - memory->base());
    }
  };

  void* try_allocate(const wire::DeviceId* device, uint64_t bytes, uint64_t alignment);
  Status add_on(const wire::DeviceId& device, uint64_t bytes, const MakeDevice& make)
      CGX_REQUIRES(grow_mutex_);
  Status try_ways(uint64_t bytes, uint64_t wanted, const MakeDevice& make)
      CGX_REQUIRES(grow_mutex_);
  Status announce(std::shared_ptr<ArenaMemory> memory) CGX_REQUIRES(grow_mutex_);
  Allocator::Block* find_import(const void* memory) CGX_REQUIRES(mutex_);
  uint32_t number_for(const ArenaMemory& memory);
  std::optional<uint32_t> number_of(const ArenaMemory& memory);
  // Nothing: it is in no imported allocation.
  std::optional<Status> import_again(const void* memory, uint64_t bytes);
  Status drop_import(uint32_t arena) CGX_REQUIRES(grow_mutex_);
  void drop(uint8_t arena, Allocator::Block& block);
  Status grow(uint64_t bytes) CGX_REQUIRES(grow_mutex_);
  Status add(uint64_t bytes) CGX_REQUIRES(grow_mutex_);
  size_t count();
  uint64_t mapped_bytes(const wire::DeviceId* device);  // by arenas of its own; null: on the host
  std::shared_ptr<ArenaMemory> lose(const wire::DeviceId& device);
  std::optional<uint32_t> usable_on(const wire::DeviceId& device);
  Status full(uint64_t bytes);
  std::optional<uint8_t> find(const void* memory) const CGX_REQUIRES(mutex_);

  const uint64_t first_bytes_;
  const Announce announce_;
  const Drop drop_;
  Mutex grow_mutex_;  // taken first; held while a new arena is made and announced
  std::map<wire::DeviceId, Status> unshareable_ CGX_GUARDED_BY(grow_mutex_);  // and why
  Mutex mutex_;
  const size_t arenas_max_;
  // Only a thread with grow_mutex_ adds to it or drops one. Never moves: holds point into it.
  std::vector<Arena> arenas_ CGX_GUARDED_BY(mutex_);
  bool abandoned_ = false;
};

}  // namespace cgx::client
