// Who wants a link to whom: when both sides have asked, their endpoints are connected, as daemons'
// mesh handshakes arrange. For clusters in one thread. Thread rule: that thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/ports.h"
#include "transport/transport.h"

namespace cgx::scheduler::sim {

class Introductions {
 public:
  struct Side {
    uint32_t machine = 0;
    wire::InstanceId instance{};  // its own
    LinkId link = 0;
    LinkRequest request;
    transport::Transport* endpoint = nullptr;
  };
  struct Introduced {
    Side other;
    transport::PeerId ours, theirs;  // by which each side's endpoint knows the other
  };
  // Nothing: the other side has not asked yet.
  std::optional<Introduced> ask(const Side& side);

 private:
  std::vector<Side> waiting_;
  uint64_t next_tag_ = 1000;
};

}  // namespace cgx::scheduler::sim
