// Where bytes of a trainer lie: in which arena of this daemon, and how far in. Whoever decides
// names places; whoever computes looks up where they are.
//
// An arena stays in the table while anything names a place in it; then its number may be given to
// another. Entries never move: a site's threads look places up while arenas come and go. Owned by
// the engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cgx::scheduler {

using ArenaId = uint32_t;
constexpr ArenaId kNoArena = UINT32_MAX;

struct Place {
  ArenaId arena = kNoArena;
  uint64_t offset = 0;

  explicit operator bool() const { return arena != kNoArena; }
  friend bool operator==(const Place&, const Place&) = default;
};

class ArenaTable {
 public:
  static constexpr size_t kArenasMax = 1 << 15;  // a process may have 65,530 mappings

  ArenaTable() { arenas_.reserve(kArenasMax); }
  // kNoArena: the table is full.
  ArenaId add(std::span<std::byte> memory) {
    const auto free = std::find_if(arenas_.begin(), arenas_.end(),
                                   [](const Entry& entry) { return !entry.used; });
    const auto id = static_cast<ArenaId>(free - arenas_.begin());
    if (free == arenas_.end() && arenas_.size() == kArenasMax) return kNoArena;
    if (free == arenas_.end()) arenas_.emplace_back();
    arenas_[id] = {memory, true};
    return id;
  }
  // REQUIRES: nothing names a place in it.
  void remove(ArenaId id) { arenas_[id] = {}; }

  uint64_t bytes(ArenaId id) const { return arenas_[id].memory.size(); }
  // Null in no arena.
  std::byte* address(const Place& place) const {
    return place.arena != kNoArena ? arenas_[place.arena].memory.data() + place.offset : nullptr;
  }

 private:
  struct Entry {
    std::span<std::byte> memory;
    bool used = false;
  };
  std::vector<Entry> arenas_;
};

}  // namespace cgx::scheduler
