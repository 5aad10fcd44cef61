// Staging: tensors in a GPU's memory on their way through the arena, which the driver is told to
// pin: copies in and out on the caller's streams, in the caller's contexts.
//
// Thread rule: any thread; `mutex_` guards the lists, `pinning_` is held while memory is
// registered. Invariants: no context is made here; nothing on a stream waits for what is not
// enqueued; memory that a copy uses is kept until the copy is over, whoever forgets it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/arena.h"
#include "proto/device/driver.h"
#include "proto/wire/mutex.h"

namespace cgx::client {

// A tensor in the memory of a GPU, and the stream that it is ready on.
struct DeviceBuffers {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t bytes = 0;
  void* stream = nullptr;  // CUstream of the current context; null: its default stream
};

class Staging;

// A copy that is enqueued; keeps the arena's part in it until it is over, as an event says, or the
// timeline word of its stream.
class Copy {
 public:
  Copy() = default;
  Copy(Copy&& other) noexcept;
  Copy& operator=(Copy&& other) noexcept;
  ~Copy() { let_go(); }

  Status wait() const;  // the host waits, for the event

 private:
  friend class Staging;
  Copy(Staging& staging, std::shared_ptr<ArenaMemory> words, Ready ready,
       std::shared_ptr<void> memory)
      : staging_(&staging), words_(std::move(words)), ready_(ready), memory_(std::move(memory)) {}
  Copy(Staging& staging, device::CUcontext context, device::CUevent over,
       std::shared_ptr<void> memory)
      : staging_(&staging), context_(context), over_(over), memory_(std::move(memory)) {}
  void let_go();

  Staging* staging_ = nullptr;
  device::CUcontext context_ = nullptr;
  device::CUevent over_ = nullptr;
  std::shared_ptr<ArenaMemory> words_;  // null: there is an event
  Ready ready_;
  std::shared_ptr<void> memory_;
};

class Staging {
 public:
  // NOT_FOUND without a driver or device.
  static Result<std::unique_ptr<Staging>> open();
  // Every Copy is gone by now; waits for those that are still on streams.
  ~Staging();

  // The caller's context. INVALID_ARGUMENT if the stream is being captured, or unless both ends are
  // memory of its device, each within one allocation, or within pieces of a pool side by side.
  Result<device::CUcontext> check(const DeviceBuffers& buffers);
  // What is put on a stream that is being captured would run later, and again: INVALID_ARGUMENT.
  Status check_not_captured(void* stream) const;
  // The same as check() of one range, which `what` names.
  Status check_range(const void* memory, uint64_t bytes, const char* what);
  // Gives back the memory of copies that are over.
  void sweep();
  bool idle();  // there are no others with an event
  // Registers an arena with the driver, once.
  Status pin(std::shared_ptr<ArenaMemory> arena);

  const device::Driver& driver() const { return driver_; }
  Result<Copy> copy_in(std::shared_ptr<void> to, const DeviceBuffers& from);
  // Into other memory of the GPU; whoever orders what follows knows when it is done.
  Status copy_within(void* to, const DeviceBuffers& from);
  // What has been copied to `memory` when the stream's word in `words` says so.
  Copy copy_until(std::shared_ptr<ArenaMemory> words, Ready ready, std::shared_ptr<void> memory) {
    return Copy(*this, std::move(words), ready, std::move(memory));
  }
  // What the stream holds so far.
  Result<Copy> copy_of_nothing(void* stream, std::shared_ptr<void> memory);
  // `within`: from memory of the GPU.
  Result<Copy> copy_out(const DeviceBuffers& to, std::shared_ptr<void> from, bool within);

 private:
  friend class Copy;
  class InContext;
  struct Event {
    device::CUcontext context;
    device::CUevent event;
  };
  struct Pinned {
    device::CUcontext context;
    std::shared_ptr<ArenaMemory> arena;
  };

  explicit Staging(const device::Driver& driver) : driver_(driver) {}
  Result<device::CUcontext> current();
  Status check_end(const void* memory, uint64_t bytes, const char* what, device::CUcontext context);
  bool is_mapped(device::CUdeviceptr at, device::CUdevice ours) const;
  Result<device::CUevent> event_of(device::CUcontext context);
  Result<Copy> mark(device::CUcontext context, void* stream, std::shared_ptr<void> memory);
  void keep(Copy copy);
  bool is_over(const Copy& copy) const;

  const device::Driver driver_;
  Mutex pinning_;
  std::vector<Pinned> pinned_ CGX_GUARDED_BY(pinning_);
  Mutex mutex_;
  std::vector<Event> free_ CGX_GUARDED_BY(mutex_);      // events to be used again
  std::vector<Copy> under_way_ CGX_GUARDED_BY(mutex_);  // forgotten by those who asked for them
};

}  // namespace cgx::client
