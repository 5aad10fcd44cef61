// Asks many at a time, but few at once: whoever asks works, too, and so it goes on where there is
// no other thread to be had.
// Thread rule: blocks the thread that asks until all is done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace cgx::daemon {

// ask(i) for each i below `count`, from `at_once_max` threads at most.
template <typename Ask>
void fan_out(size_t count, size_t at_once_max, Ask ask) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) ask(i);
  };
  std::vector<std::jthread> others;
  try {
    for (size_t i = 1; i < std::min(count, at_once_max); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // with those there are
  }
  work();
}

}  // namespace cgx::daemon
