#include "client/allocator.h"

#include <iterator>

namespace cgx::client {
namespace {

constexpr uint64_t kGranule = 64;  // a cache line: two allocations never share one

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) & ~(to - 1);
}

}  // namespace

Allocator::Allocator(uint64_t bytes) {
  add_free(0, bytes / kGranule * kGranule);
}

std::optional<uint64_t> Allocator::allocate(uint64_t bytes, uint64_t alignment) {
  if (bytes > free_bytes_) return std::nullopt;
  const uint64_t need = round_up(bytes == 0 ? 1 : bytes, kGranule);
  for (auto it = by_size_.lower_bound({need, 0}); it != by_size_.end(); ++it) {
    const auto [room, start] = *it;
    const uint64_t offset = round_up(start, alignment);
    if (offset < start || offset - start > room - need) continue;
    remove_free(start, room);
    if (offset > start) add_free(start, offset - start);
    if (const uint64_t rest = room - (offset - start) - need; rest > 0) {
      add_free(offset + need, rest);
    }
    taken_.emplace(offset, need);
    return offset;
  }
  return std::nullopt;
}

bool Allocator::release(uint64_t offset) {
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return false;
  uint64_t start = offset, bytes = found->second;
  taken_.erase(found);
  const auto after = free_.find(start + bytes);
  if (after != free_.end()) {
    bytes += after->second;
    remove_free(after->first, after->second);
  }
  const auto next = free_.lower_bound(start);
  if (next != free_.begin()) {
    const auto [before, size] = *std::prev(next);
    if (before + size == start) {
      remove_free(before, size);
      start = before;
      bytes += size;
    }
  }
  add_free(start, bytes);
  return true;
}

void Allocator::add_free(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  free_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void Allocator::remove_free(uint64_t offset, uint64_t bytes) {
  free_.erase(offset);
  by_size_.erase({bytes, offset});
  free_bytes_ -= bytes;
}

}  // namespace cgx::client
