// Allocator: which ranges of one arena are taken. Best fit, neighbours coalesce. Knows offsets
// only, never touches the memory. Thread rule: none of its own; the arena set's mutex guards it.
// Invariant: a block that is held is not given out again, also when it was released meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cgx::client {

class Allocator {
 public:
  struct Block {
    uint64_t offset = 0;
    uint64_t bytes = 0;  // as asked for
    uint32_t holds = 0;
    bool released = false;  // free with its last hold
    uint32_t imports = 0;   // of memory that was not made here
  };

  explicit Allocator(uint64_t bytes);

  // `alignment` is a power of two. nullopt: no free range is large enough.
  std::optional<uint64_t> allocate(uint64_t bytes, uint64_t alignment);
  // This range. False: some of it is taken, or released and held, or there is none such.
  bool take(uint64_t offset, uint64_t bytes);
  // False: nothing was allocated at this offset.
  bool release(uint64_t offset);
  // The block that `offset` lies in; nullptr: none, or a released one. Valid until it is released
  // and no longer held.
  Block* find(uint64_t offset);
  void hold(Block& block) { ++block.holds; }
  void drop(Block& block);

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }  // released, but held
  uint64_t allocated_count() const { return taken_.size(); }

 private:
  void give_back(const Block& block);
  void add_free(uint64_t offset, uint64_t bytes);
  void remove_free(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes_ = 0;
  uint64_t waiting_bytes_ = 0;
  std::map<uint64_t, uint64_t> free_;                // offset -> bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset)
  std::map<uint64_t, Block> taken_;                  // by offset
};

}  // namespace cgx::client
