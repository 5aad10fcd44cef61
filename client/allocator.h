// Allocator: which ranges of one arena are taken. Best fit, neighbours coalesce. Knows offsets
// only, never touches the memory. Thread rule: none of its own; the arena set's mutex guards it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cgx::client {

class Allocator {
 public:
  explicit Allocator(uint64_t bytes);

  // `alignment` is a power of two. nullopt: no free range is large enough.
  std::optional<uint64_t> allocate(uint64_t bytes, uint64_t alignment);
  // False: nothing was allocated at this offset.
  bool release(uint64_t offset);

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  uint64_t allocated_count() const { return taken_.size(); }

 private:
  void add_free(uint64_t offset, uint64_t bytes);
  void remove_free(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes_ = 0;
  std::map<uint64_t, uint64_t> free_;                // offset -> bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset)
  std::map<uint64_t, uint64_t> taken_;               // offset -> bytes
};

}  // namespace cgx::client
