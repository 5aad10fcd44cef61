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
  // May be read when this timeline word of the arena has reached the value, cyclic; 0: at once.
  uint32_t word = 0, word_value = 0;

  explicit operator bool() const { return arena != kNoArena; }
  friend bool operator==(const Place&, const Place&) = default;
};

// Which of the engine's sites computes; the number of one that has gone is not given to another.
using SiteId = uint32_t;
constexpr SiteId kHostSite = 0;

// Memory that only one site can reach, which knows it by a name of its own.
struct SiteMemory {
  SiteId site = kHostSite;
  uint64_t name = 0;
  uint64_t bytes = 0;
};

class ArenaTable {
 public:
  static constexpr size_t kArenasMax = 1 << 15;  // a process may have 65,530 mappings

  ArenaTable() { arenas_.reserve(kArenasMax); }
  // kNoArena: the table is full.
  ArenaId add(std::span<std::byte> memory) {
    return add(Entry{memory, {.bytes = memory.size()}, true});
  }
  ArenaId add(const SiteMemory& memory) { return add(Entry{{}, memory, true}); }
  // REQUIRES: nothing names a place in it.
  void remove(ArenaId id) { arenas_[id] = {}; }
  // Of a site's own: nothing of it is there any more, and places in it stay within nothing.
  void empty(ArenaId id) { arenas_[id].about.name = arenas_[id].about.bytes = 0; }
  // One that is empty, with other memory of the same site.
  void refill(ArenaId id, const SiteMemory& memory) { arenas_[id].about = memory; }

  uint64_t bytes(ArenaId id) const { return arenas_[id].about.bytes; }
  SiteId site(ArenaId id) const { return arenas_[id].about.site; }
  uint64_t name(ArenaId id) const { return arenas_[id].about.name; }
  // Null in no arena. REQUIRES: it is the host's.
  std::byte* address(const Place& place) const {
    return place.arena != kNoArena ? arenas_[place.arena].memory.data() + place.offset : nullptr;
  }

 private:
  struct Entry {
    std::span<std::byte> memory;
    SiteMemory about;
    bool used = false;
  };
  ArenaId add(const Entry& entry) {
    const auto free =
        std::find_if(arenas_.begin(), arenas_.end(), [](const Entry& each) { return !each.used; });
    const auto id = static_cast<ArenaId>(free - arenas_.begin());
    if (free == arenas_.end() && arenas_.size() == kArenasMax) return kNoArena;
    if (free == arenas_.end()) arenas_.emplace_back();
    arenas_[id] = entry;
    return id;
  }

  std::vector<Entry> arenas_;
};

}  // namespace cgx::scheduler
