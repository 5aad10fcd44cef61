// Counts every allocation of the process, its libraries' too. Sanitizers have a malloc of their
// own: with them nothing is counted and CGX_COUNTS_ALLOCATIONS is not defined.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(size_t);
inline std::atomic<uint64_t> allocations{0};
extern "C" __attribute__((used)) inline void* malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
#define CGX_COUNTS_ALLOCATIONS 1
#endif
