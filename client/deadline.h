// Deadlines: absolute times on the monotonic clock, made from the API's milliseconds without
// overflow.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cgx::client {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr uint64_t kTimeoutMsMax = 365ull * 24 * 3600 * 1000;  // longer means the same

inline Deadline deadline_in_ms(uint64_t timeout_ms) {
  return Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kTimeoutMsMax));
}

// Whole milliseconds until `deadline`, rounded up: 0 only when it has passed.
inline int64_t ms_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max<int64_t>(left.count(), 0);
}

inline timespec to_timespec(std::chrono::nanoseconds span) {
  return {.tv_sec = span.count() / 1'000'000'000, .tv_nsec = span.count() % 1'000'000'000};
}

}  // namespace cgx::client
