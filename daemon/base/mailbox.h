// How agents talk: a bounded queue of messages into one agent's thread, with an eventfd that wakes
// it.
//
// For set-up and operators, never per frame or per record: posting takes a mutex.
// Thread rule: post() and post_wait() from anywhere; drain() and empty() by the owner.
// Invariants: never more than `capacity` messages; messages of one sender arrive in order. The
// eventfd is written when the queue stops being empty and never read: watch it edge-triggered.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "proto/wire/mutex.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

template <typename Message>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity)
      : capacity_(capacity), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CGX_ASSERT(wake_);
  }

  // False: full or closed; the message is lost.
  bool post(Message message) {
    MutexLock lock(mutex_);
    return !closed_ && queue_.size() < capacity_ && push(std::move(message));
  }
  // Waits for room; for agents the owner never waits for. False: closed.
  bool post_wait(Message message) {
    MutexLock lock(mutex_);
    while (!closed_ && queue_.size() >= capacity_) room_.wait(mutex_);
    return !closed_ && push(std::move(message));
  }

  // Hands at most `count_max` messages to `visit`; returns how many.
  template <typename Visit>
  int drain(int count_max, Visit visit) {
    int count = 0;
    while (count < count_max && !empty()) {
      visit(pop());
      ++count;
    }
    return count;
  }
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

  // No message gets in any more; what is queued is dropped with the mailbox.
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    room_.notify_all();
  }
  int event_fd() const { return wake_.get(); }
  void wake() { ::eventfd_write(wake_.get(), 1); }

 private:
  bool push(Message message) CGX_REQUIRES(mutex_) {
    queue_.push_back(std::move(message));
    if (size_.fetch_add(1, std::memory_order_release) == 0) wake();
    return true;
  }
  Message pop() {
    MutexLock lock(mutex_);
    Message message = std::move(queue_.front());
    queue_.pop_front();
    size_.fetch_sub(1, std::memory_order_release);
    room_.notify_one();
    return message;
  }

  const size_t capacity_;
  UniqueFd wake_;
  Mutex mutex_;
  Condition room_;
  std::deque<Message> queue_ CGX_GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};
  bool closed_ CGX_GUARDED_BY(mutex_) = false;
};

}  // namespace cgx::daemon
