#include "daemon/thread_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace cgx::daemon {

ThreadPlace::ThreadPlace()
    : statistics_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  if (::sched_getaffinity(0, sizeof(given_), &given_) != 0) CPU_ZERO(&given_);
}

uint32_t ThreadPlace::core() {
  return static_cast<uint32_t>(::sched_getcpu());
}

bool ThreadPlace::narrow(uint32_t core) {
  if (core >= CPU_SETSIZE || !CPU_ISSET(core, &given_)) return false;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  return ::sched_setaffinity(0, sizeof(one), &one) == 0;
}

void ThreadPlace::widen() {
  if (CPU_COUNT(&given_) > 0) ::sched_setaffinity(0, sizeof(given_), &given_);
}

// "<ran> <queued> <slices>"
ThreadTimes ThreadPlace::times() const {
  char text[96] = {};
  unsigned long long ran = 0, queued = 0;
  if (!statistics_ || ::pread(statistics_.get(), text, sizeof(text) - 1, 0) <= 0) return {};
  if (std::sscanf(text, "%llu %llu", &ran, &queued) != 2) return {};
  return {.ran_ns = ran, .queued_ns = queued};
}

}  // namespace cgx::daemon
