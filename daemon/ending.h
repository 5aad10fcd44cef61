// The last seconds of the process: it ends though one of its threads does not, as where a disk does
// not answer.
//
// Thread rule: main, which makes it before what has threads and so drops it after. A thread of its
// own waits meanwhile.
#pragma once

#include <signal.h>

#include <atomic>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

namespace cgx::daemon {

constexpr uint64_t kEndNs = 10 * kSecond;  // for all threads

class Ending {
 public:
  // `signals` are blocked in all threads. What it has to say it says in a log of its own.
  Ending(const LogSettings& log, const sigset_t& signals) : log_(log), signals_(signals) {}
  ~Ending();  // in time
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  // Nobody else takes signals any more. After kEndNs, or when one asks to stop, the process ends
  // with status 1.
  void begin();

 private:
  void wait() const;
  [[noreturn]] void end_now(uint64_t after_ms) const;

  const LogSettings log_;
  const sigset_t signals_;
  std::atomic<bool> in_time_{false};
  std::thread waits_;
};

}  // namespace cgx::daemon
