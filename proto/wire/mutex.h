// A mutex that says what it guards: clang checks it (-Wthread-safety, in `fuzz` builds and in
// clang-tidy's run of CI).
//
//   Mutex mutex_;
//   int waiting_ CGX_GUARDED_BY(mutex_) = 0;
//   void count() CGX_REQUIRES(mutex_);
//
// A lambda is a function of its own to clang: wait in a loop, not with a predicate.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define CGX_THREAD_RULE(rule) __attribute__((rule))
#else
#define CGX_THREAD_RULE(rule)
#endif
#define CGX_GUARDED_BY(mutex) CGX_THREAD_RULE(guarded_by(mutex))
#define CGX_REQUIRES(mutex) CGX_THREAD_RULE(requires_capability(mutex))

namespace cgx {

class CGX_THREAD_RULE(capability("mutex")) Mutex {
 public:
  void lock() CGX_THREAD_RULE(acquire_capability()) { mutex_.lock(); }
  void unlock() CGX_THREAD_RULE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a mutex; unlock() lets go of it for a while.
class CGX_THREAD_RULE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CGX_THREAD_RULE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() CGX_THREAD_RULE(release_capability()) {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() CGX_THREAD_RULE(release_capability()) {
    mutex_.unlock();
    held_ = false;
  }
  void lock() CGX_THREAD_RULE(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

class Condition {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }
  void wait(Mutex& mutex) CGX_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // False: it is time.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point end) CGX_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool told = changed_.wait_until(lock, end) == std::cv_status::no_timeout;
    lock.release();
    return told;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace cgx
