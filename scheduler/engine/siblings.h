// Sites of one daemon that take part in the same communicator: each is a machine of its view, with
// a Communicator here. A frame between two of them is a reference to its payload: no copy, no
// checksum of it, no network. It is given out between two pieces of work, never inside send(), in
// the order in which it was sent.
//
// Owned by the engine.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/communicator/communicator.h"
#include "transport/transport.h"

namespace cgx::scheduler {

class Siblings {
 public:
  struct Frame {
    transport::PeerId to;
    wire::FrameHeader header;
    std::span<const std::byte> payload;  // lies there until the token is given back
    transport::SendToken token = transport::kNoToken;
  };

  // No transport has peers of this generation.
  static bool beside(transport::PeerId peer) { return peer.generation == UINT32_MAX; }

  // It hears of those that are there already, and they of it.
  static void meet(Communicator& made, std::span<Communicator* const> others) {
    for (Communicator* const other : others) {
      if (other->members().id != made.members().id || !other->living()) continue;
      made.link_up(other->members().machine, peer_of(*other));
      other->link_up(made.members().machine, peer_of(made));
    }
  }
  void push(const Frame& frame) { frames_.push_back(frame); }
  bool empty() const { return frames_.empty(); }
  std::vector<Frame> take() { return std::exchange(frames_, {}); }
  static bool is_for(const Frame& frame, const Communicator& communicator) {
    return frame.to == peer_of(communicator) &&
           frame.header.communicator == communicator.members().id;
  }

 private:
  static transport::PeerId peer_of(const Communicator& communicator) {
    return {communicator.index(), UINT32_MAX};
  }
  std::vector<Frame> frames_;
};

}  // namespace cgx::scheduler
