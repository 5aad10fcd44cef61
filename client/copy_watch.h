// CopyWatch: a thread that waits for copies in the order they were given, and tells what came of
// them: what a GPU has copied into the arena is handed to the daemon then, and not before.
//
// Thread rule: any thread; `mutex_` guards the queue and is not held while a copy is waited for or
// told of.
#pragma once

#include <deque>
#include <functional>
#include <thread>

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

  void watch(Copy copy, Told told);
  bool idle();  // all that were given have been told

 private:
  struct Watched {
    Copy copy;
    Told told;
  };
  void begin() CGX_REQUIRES(mutex_);
  void run();

  Mutex mutex_;
  Condition changed_;
  std::deque<Watched> queue_ CGX_GUARDED_BY(mutex_);
  bool ending_ CGX_GUARDED_BY(mutex_) = false;
  bool telling_ CGX_GUARDED_BY(mutex_) = false;  // of one, or waits for it
  std::thread thread_ CGX_GUARDED_BY(mutex_);    // from the first copy on
};

}  // namespace cgx::client
