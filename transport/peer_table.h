// Peers of one endpoint by PeerId. A slot is reused with a new generation, so a stale id finds
// nothing. Addresses of peers are stable while they are in the table.
//
// Thread rule: as its transport.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace cgx::transport {

template <typename Peer>
class PeerTable {
 public:
  PeerId add(std::unique_ptr<Peer> peer) {
    uint32_t index = 0;
    while (index < slots_.size() && slots_[index].peer) ++index;
    if (index == slots_.size()) slots_.emplace_back();
    slots_[index].peer = std::move(peer);
    return {index, ++slots_[index].generation};
  }

  Peer* find(PeerId id) const {
    if (id.index >= slots_.size() || slots_[id.index].generation != id.generation) return nullptr;
    return slots_[id.index].peer.get();
  }

  std::unique_ptr<Peer> remove(PeerId id) {
    return find(id) ? std::move(slots_[id.index].peer) : nullptr;
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].peer) visit(PeerId{i, slots_[i].generation}, *slots_[i].peer);
    }
  }

 private:
  struct Slot {
    std::unique_ptr<Peer> peer;
    uint32_t generation = 0;
  };
  std::vector<Slot> slots_;
};

}  // namespace cgx::transport
