// CopyWatch: threads that wait for copies, each for those of one owner in the order they were
// given, and tell what came of them: what a GPU has copied into the arena is handed to the daemon
// then, and not before.
//
// Thread rule: any thread; `mutex_` guards the queues and is not held while a copy is waited for or
// told of.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "client/staging.h"
#include "proto/wire/mutex.h"

namespace cgx::client {

class CopyWatch {
 public:
  using Told = std::function<void(const Status&)>;

  CopyWatch() = default;
  ~CopyWatch();  // after the last one is told
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  // Behind what this owner has given before, and behind nobody else's.
  void watch(const void* owner, Copy copy, Told told);
  void leave(const void* owner);  // it gives no more
  bool idle();                    // all that were given have been told

 private:
  struct Watched {
    Copy copy;
    Told told;
  };
  struct Lane {                   // guarded by `mutex_`, but for the thread
    const void* owner = nullptr;  // null: has left
    std::deque<Watched> queue;
    bool telling = false;  // of one, or waits for it
    Condition changed;
    std::thread thread;  // from an owner's first copy on
  };
  Lane& lane_of(const void* owner) CGX_REQUIRES(mutex_);
  static bool is_idle(const std::unique_ptr<Lane>& lane);
  void run(Lane& lane);

  Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ CGX_GUARDED_BY(mutex_);
  bool ending_ CGX_GUARDED_BY(mutex_) = false;
};

}  // namespace cgx::client
