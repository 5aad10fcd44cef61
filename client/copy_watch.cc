#include "client/copy_watch.h"

#include <algorithm>
#include <utility>

#include "client/no_signals.h"

namespace cgx::client {

CopyWatch::~CopyWatch() {
  std::vector<std::unique_ptr<Lane>> lanes;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    lanes = std::move(lanes_);
  }
  for (const std::unique_ptr<Lane>& each : lanes) {
    each->changed.notify_all();
    each->thread.join();
  }
}

void CopyWatch::watch(const void* owner, Copy copy, Told told) {
  const MutexLock lock(mutex_);
  Lane& lane = lane_of(owner);
  lane.queue.push_back({std::move(copy), std::move(told)});
  lane.changed.notify_all();
}

void CopyWatch::leave(const void* owner) {
  const MutexLock lock(mutex_);
  for (const std::unique_ptr<Lane>& each : lanes_) {
    if (each->owner == owner) each->owner = nullptr;
  }
}

bool CopyWatch::idle() {
  const MutexLock lock(mutex_);
  return std::all_of(lanes_.begin(), lanes_.end(), is_idle);
}

bool CopyWatch::is_idle(const std::unique_ptr<Lane>& lane) {
  return lane->queue.empty() && !lane->telling;
}

// Its own, or one that somebody has left, or a new one.
CopyWatch::Lane& CopyWatch::lane_of(const void* owner) {
  Lane* left = nullptr;
  for (const std::unique_ptr<Lane>& each : lanes_) {
    if (each->owner == owner) return *each;
    if (each->owner == nullptr && is_idle(each)) left = each.get();
  }
  if (left == nullptr) {
    left = lanes_.emplace_back(std::make_unique<Lane>()).get();
    const NoSignals for_the_thread;
    left->thread = std::thread([this, left] { run(*left); });
  }
  left->owner = owner;
  return *left;
}

void CopyWatch::run(Lane& lane) {
  MutexLock lock(mutex_);
  for (;;) {
    while (!ending_ && lane.queue.empty()) lane.changed.wait(mutex_);
    if (lane.queue.empty()) return;
    lane.telling = true;
    {
      const Watched first = std::move(lane.queue.front());
      lane.queue.pop_front();
      lock.unlock();
      first.told(first.copy.wait());
    }
    lock.lock();
    lane.telling = false;
  }
}

}  // namespace cgx::client
