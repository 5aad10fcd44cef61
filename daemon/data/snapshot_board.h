// Where askers wait for snapshots of the daemon and its data thread puts them up.
//
// Thread rule: ask() from anywhere, the rest by the data agent. A snapshot is made only for whoever
// has asked since the one before was begun, so it is never older than anything an asker has done;
// all who wait get the same one. It goes when the last of them has it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "daemon/base/unique_function.h"
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
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  uint64_t begun_ = 0, made_ = 0;  // their numbers
  Shown last_;
  uint32_t waiting_ = 0;
  bool closed_ = false;
};

}  // namespace cgx::daemon
