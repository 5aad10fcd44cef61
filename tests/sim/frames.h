// Frames on their way between simulated machines: what they are, and copies that a test keeps,
// changes and delivers.
#pragma once

#include <cstring>
#include <variant>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "tests/sim/cluster.h"

namespace cgx::sim {

inline wire::FrameHeader header_of(const transport::Frame& frame) {
  wire::FrameHeader header;
  CGX_ASSERT(frame.header.size() == sizeof(header));
  std::memcpy(static_cast<void*>(&header), frame.header.data(), sizeof(header));
  return header;
}

inline bool is_data(const transport::Frame& frame) {
  return header_of(frame).type == wire::FrameType::kData;
}

template <typename Message>
bool carries(const transport::Frame& frame) {
  if (header_of(frame).type != wire::FrameType::kControl) return false;
  const Result<scheduler::ControlMessage> message = scheduler::decode_control(frame.payload);
  return message.ok() && std::holds_alternative<Message>(*message);
}

struct KeptFrame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;

  explicit KeptFrame(const transport::Frame& frame)
      : header(header_of(frame)), payload(frame.payload.begin(), frame.payload.end()) {}

  // `machine` reads it now, as from the machine it names and with checksums that fit.
  void deliver(Cluster& cluster, uint32_t machine) {
    header.target = machine;
    wire::seal(header, payload);
    deliver_as_it_is(cluster, machine);
  }
  void deliver_as_it_is(Cluster& cluster, uint32_t machine) {
    cluster.engine(machine).on_frame(cluster.peer_of(machine, header.source),
                                     {std::as_bytes(std::span(&header, 1)), payload});
  }
};

}  // namespace cgx::sim
