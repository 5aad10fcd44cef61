// Which cores the calling thread may run on, narrowed to one and widened again.
// Thread rule: made and used by the thread it is about.
// Invariants: never outside the cores the thread was given at the start.
#pragma once

#include <sched.h>

#include <cstdint>

#include "daemon/fd.h"
#include "daemon/nearness.h"

namespace cgx::daemon {

class ThreadPlace {
 public:
  ThreadPlace();

  static uint32_t core();      // the thread runs on now
  bool narrow(uint32_t core);  // false: not one of the thread's cores
  void widen();
  ThreadTimes times() const;  // zeros: the kernel does not say

 private:
  cpu_set_t given_;
  UniqueFd statistics_;
};

}  // namespace cgx::daemon
