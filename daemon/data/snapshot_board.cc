#include "daemon/data/snapshot_board.h"

#include <chrono>

#include "daemon/base/clock.h"

namespace cgx::daemon {

Result<SnapshotBoard::Shown> SnapshotBoard::ask(uint64_t timeout_ns) {
  MutexLock lock(mutex_);
  if (closed_) {
    return Status(StatusCode::kBUSY, "snapshot: the daemon is busy or stopping");
  }
  const uint64_t next = begun_ + 1;
  if (!wanted_.exchange(true)) wake_();
  ++waiting_;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (!closed_ && made_ < next && changed_.wait_until(mutex_, end)) {
  }
  const bool told = closed_ || made_ >= next;
  const Shown shown = made_ >= next ? last_ : nullptr;
  if (--waiting_ == 0) last_.reset();
  if (shown != nullptr) return shown;
  if (told) return Status(StatusCode::kCANCELLED, "snapshot: the daemon is stopping");
  return Status(StatusCode::kTIMED_OUT,
                "snapshot: no answer within " + std::to_string(timeout_ns / kMillisecond) + " ms");
}

void SnapshotBoard::begin() {
  const MutexLock lock(mutex_);
  ++begun_;
  wanted_ = false;
}

void SnapshotBoard::put_up(scheduler::Snapshot made) {
  auto shown = std::make_shared<const scheduler::Snapshot>(std::move(made));
  const MutexLock lock(mutex_);
  made_ = begun_;
  if (waiting_ > 0) last_ = std::move(shown);
  changed_.notify_all();
}

void SnapshotBoard::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace cgx::daemon
