// CopyWatch: a thread that waits for copies in the order they were given, and tells what came of
// them: what a GPU has copied into the arena is handed to the daemon then, and not before.
//
// Thread rule: any thread; `mutex_` guards the queue and is not held while a copy is waited for or
// told of.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "client/staging.h"

namespace cgx::client {

class CopyWatch {
 public:
  using Told = std::function<void(const Status&)>;

  CopyWatch() = default;
  ~CopyWatch();  // after the last one is told
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  void watch(Copy copy, Told told);

 private:
  struct Watched {
    Copy copy;
    Told told;
  };
  void begin();
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watched> queue_;
  bool ending_ = false;
  std::thread thread_;  // from the first copy on
};

}  // namespace cgx::client
