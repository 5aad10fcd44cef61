// Links whose transport is connected and which the engine does not know as up yet, by the peer that
// frames come from: each frame asks.
// Thread rule: the data agent's.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/data/links_port.h"
#include "transport/transport.h"

namespace cgx::daemon {

class ConnectingLinks {
 public:
  void add(transport::PeerId peer, LinkSerial serial) {
    if (by_index_.size() <= peer.index) by_index_.resize(peer.index + 1);
    count_ += by_index_[peer.index].serial == 0;
    by_index_[peer.index] = {peer, serial};
  }
  void remove(transport::PeerId peer) {
    if (find(peer) == 0) return;
    by_index_[peer.index] = {};
    --count_;
  }
  // 0: it is none of them.
  LinkSerial find(transport::PeerId peer) const {
    if (count_ == 0 || peer.index >= by_index_.size()) return 0;
    const Entry& entry = by_index_[peer.index];
    return entry.peer == peer ? entry.serial : 0;
  }

 private:
  struct Entry {
    transport::PeerId peer;
    LinkSerial serial = 0;
  };
  std::vector<Entry> by_index_;  // transports give out low indices
  uint32_t count_ = 0;
};

}  // namespace cgx::daemon
