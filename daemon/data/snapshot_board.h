// Where askers wait for snapshots of the daemon and its data thread puts them up.
//
// Thread rule: ask() from anywhere, the rest by the data agent. A snapshot is made only for whoever
// has asked since the one before was begun, so it is never older than anything an asker has done;
// all who wait get the same one. It goes when the last of them has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "daemon/base/unique_function.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status.h"
#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

class SnapshotBoard {
 public:
  using Shown = std::shared_ptr<const scheduler::Snapshot>;

  explicit SnapshotBoard(UniqueFunction<void()> wake) : wake_(std::move(wake)) {}

  Result<Shown> ask(uint64_t timeout_ns);

  bool wanted() const { return wanted_.load(std::memory_order_acquire); }
  void begin();
  void put_up(scheduler::Snapshot made);  // what begin() began
  void close();                           // nothing more comes

 private:
  UniqueFunction<void()> wake_;  // the data thread
  std::atomic<bool> wanted_{false};
  Mutex mutex_;
  Condition changed_;
  uint64_t begun_ CGX_GUARDED_BY(mutex_) = 0;  // the numbers of snapshots
  uint64_t made_ CGX_GUARDED_BY(mutex_) = 0;
  Shown last_ CGX_GUARDED_BY(mutex_);
  uint32_t waiting_ CGX_GUARDED_BY(mutex_) = 0;
  bool closed_ CGX_GUARDED_BY(mutex_) = false;
};

}  // namespace cgx::daemon
