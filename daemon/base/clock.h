// The daemon's one clock: everything below it is handed `now_ns`.
#pragma once

#include <time.h>

#include <cstdint>

namespace cgx::daemon {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kMicrosecond = 1'000;
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecond + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace cgx::daemon
