#include "client/allocator.h"

#include <iterator>

namespace cgx::client {
namespace {

constexpr uint64_t kGranule = 64;  // a cache line: two allocations never share one

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) & ~(to - 1);
}

uint64_t room_of(uint64_t bytes) {
  return round_up(bytes == 0 ? 1 : bytes, kGranule);
}

}  // namespace

Allocator::Allocator(uint64_t bytes) {
  add_free(0, bytes / kGranule * kGranule);
}

bool Allocator::take(uint64_t offset, uint64_t bytes) {
  if (bytes > free_bytes_) return false;
  const uint64_t need = room_of(bytes);
  const auto next = free_.upper_bound(offset);
  if (offset % kGranule != 0 || next == free_.begin()) return false;
  const auto [start, room] = *std::prev(next);
  if (offset - start > room || need > room - (offset - start)) return false;
  remove_free(start, room);
  add_free(start, offset - start);
  add_free(offset + need, room - (offset - start) - need);
  taken_.emplace(offset, Block{.offset = offset, .bytes = bytes});
  return true;
}

std::optional<uint64_t> Allocator::allocate(uint64_t bytes, uint64_t alignment) {
  if (bytes > free_bytes_) return std::nullopt;
  const uint64_t need = room_of(bytes);
  for (auto it = by_size_.lower_bound({need, 0}); it != by_size_.end(); ++it) {
    const auto [room, start] = *it;
    const uint64_t offset = round_up(start, alignment);
    if (offset < start || offset - start > room - need) continue;
    remove_free(start, room);
    if (offset > start) add_free(start, offset - start);
    if (const uint64_t rest = room - (offset - start) - need; rest > 0) {
      add_free(offset + need, rest);
    }
    taken_.emplace(offset, Block{.offset = offset, .bytes = bytes});
    return offset;
  }
  return std::nullopt;
}

bool Allocator::release(uint64_t offset) {
  const auto found = taken_.find(offset);
  if (found == taken_.end() || found->second.released) return false;
  found->second.released = true;
  waiting_bytes_ += room_of(found->second.bytes);
  if (found->second.holds == 0) give_back(found->second);
  return true;
}

Allocator::Block* Allocator::find(uint64_t offset) {
  const auto next = taken_.upper_bound(offset);
  if (next == taken_.begin()) return nullptr;
  Block& block = std::prev(next)->second;
  const bool inside = offset - block.offset < room_of(block.bytes);
  return inside && !block.released ? &block : nullptr;
}

void Allocator::drop(Block& block) {
  if (--block.holds == 0 && block.released) give_back(block);
}

void Allocator::give_back(const Block& block) {
  uint64_t start = block.offset, bytes = room_of(block.bytes);
  waiting_bytes_ -= bytes;
  taken_.erase(start);
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
