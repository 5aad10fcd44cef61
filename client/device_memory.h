// Memory of a GPU that a session shares with its daemon's GPU worker, and the page of timeline
// words that orders what streams of this process do with it.
//
// Words: one per stream. The stream writes the next value behind what it holds; whoever reads the
// memory elsewhere waits for that value. Nobody waits for one whose write is not enqueued yet.
// Thread rule: any thread; `mutex_` guards the words.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/deadline.h"
#include "proto/device/driver.h"
#include "proto/wire/mutex.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"

namespace cgx::client {

// Which word stands for a stream's work, and at which value that is done. 0: none does.
struct Ready {
  uint32_t word = 0, value = 0;
};

class DeviceMemory {
 public:
  static constexpr uint64_t kWorkerEndsMs = 1'000;
  // Of the device whose context is current, which must be the one named. UNIMPLEMENTED where the
  // driver or the device cannot share memory that way.
  static Result<std::unique_ptr<DeviceMemory>> create(const device::Driver& driver,
                                                      const wire::DeviceId& device,
                                                      wire::ArenaWay way, uint64_t bytes);
  // The whole allocation that `memory` lies in, which the caller made and frees. UNIMPLEMENTED
  // where it cannot go by handle (VMM, a pool).
  static Result<std::unique_ptr<DeviceMemory>> import(const device::Driver& driver,
                                                      const wire::DeviceId& device,
                                                      const void* memory);
  // More on the same device, whatever context is current.
  Result<std::unique_ptr<DeviceMemory>> another(wire::ArenaWay way, uint64_t bytes) const;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* base() const { return reinterpret_cast<std::byte*>(base_); }
  uint64_t bytes() const { return bytes_; }
  const wire::DeviceId& device() const { return device_; }
  bool imported() const { return imported_; }
  wire::AddArena announcement(uint32_t number) const;
  int words_fd() const { return words_fd_.get(); }
  int memory_fd() const { return memory_fd_.get(); }  // -1: it has none
  // The worker has it, and says to have written this where the announcement said.
  void announced(uint64_t pattern) { announced_ = true, pattern_ = pattern; }
  // Whether that is where this process reads. What was there is written back to imported memory.
  Status check_pattern() const;
  // The same where nobody has said what was written: the worker may have been asked.
  Status put_back() const;
  // The worker has closed it.
  void dropped() { announced_ = false; }
  // So long its end waits for the worker to close it; a second where nobody says so.
  void wait_at_end(std::shared_ptr<Deadline> until) { waits_until_ = std::move(until); }

  // Enqueues the write behind what is on the stream. INVALID_ARGUMENT for the default stream of
  // another context. UNIMPLEMENTED where streams write no words, the handle is not one stream's, or
  // more streams than words are at work: then the host has to wait.
  Result<Ready> when_done(void* stream);
  // The word has that value, or a later one.
  bool reached(Ready ready) const;
  // Every stream has written its last word, and so done all that was handed over on it; or never
  // will, because its GPU has failed.
  bool idle();

 private:
  class InContext;
  DeviceMemory(const device::Driver& driver, const wire::DeviceId& device, wire::ArenaWay way,
               uint64_t bytes)
      : driver_(driver), device_(device), way_(way), bytes_(bytes) {}
  Status check_device();
  Status make_words();
  Status make_vmm();
  Status make_ipc();
  Status find_allocation(const void* memory);
  Status export_handle(const std::string& what);
  bool worker_has_closed() const;  // waits for it, but not for ever
  struct Word {
    Ready last;
    std::optional<void*> given_up_by;  // the stream that had it
  };
  Result<Word> word_for(void* stream) CGX_REQUIRES(mutex_);
  bool failed() const;
  void give_back();
  Status check_stream(void* stream) const;
  Status of_another_context(device::CUcontext now) const;

  const pid_t maker_ = ::getpid();
  const device::Driver driver_;
  const wire::DeviceId device_;
  const wire::ArenaWay way_;
  uint64_t bytes_;
  device::CUcontext context_ = nullptr;
  device::CUdevice ordinal_ = 0;
  device::CUdeviceptr base_ = 0, words_on_device_ = 0;
  device::CUmemGenericAllocationHandle allocation_ = 0;
  wire::MemoryHandle handle_{};
  UniqueFd words_fd_, memory_fd_;
  std::byte* words_ = nullptr;
  bool pinned_ = false, announced_ = false, imported_ = false;
  uint64_t pattern_ = 0, pattern_at_ = 0;
  std::shared_ptr<Deadline> waits_until_;  // anew with each that is seen closed; null: its own
  uint64_t before_ = 0;                    // what was where the pattern goes
  Mutex mutex_;
  struct Stream {
    Ready last;            // value that it will write
    uint64_t written = 0;  // the how-manieth write of all that was
  };
  std::map<void*, Stream> streams_ CGX_GUARDED_BY(mutex_);
  uint64_t writes_ CGX_GUARDED_BY(mutex_) = 0;
};

}  // namespace cgx::client
