#include "client/copy_watch.h"

#include <utility>

#include "client/no_signals.h"

namespace cgx::client {

CopyWatch::~CopyWatch() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CopyWatch::watch(Copy copy, Told told) {
  const MutexLock lock(mutex_);
  if (!thread_.joinable()) begin();
  queue_.push_back({std::move(copy), std::move(told)});
  changed_.notify_all();
}

bool CopyWatch::idle() {
  const MutexLock lock(mutex_);
  return queue_.empty() && !telling_;
}

void CopyWatch::begin() {
  const NoSignals for_the_thread;
  thread_ = std::thread([this] { run(); });
}

void CopyWatch::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!ending_ && queue_.empty()) changed_.wait(mutex_);
    if (queue_.empty()) return;
    telling_ = true;
    {
      const Watched first = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      first.told(first.copy.wait());
    }
    lock.lock();
    telling_ = false;
  }
}

}  // namespace cgx::client
