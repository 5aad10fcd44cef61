// Frames on their way between simulated machines: what they are, and copies that a test keeps,
// changes and delivers.
#pragma once

#include <cstring>
#include <functional>
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

// REQUIRES: carries<Message>(frame).
template <typename Message>
Message message_of(const transport::Frame& frame) {
  return std::get<Message>(*scheduler::decode_control(frame.payload));
}

struct KeptFrame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;

  explicit KeptFrame(const transport::Frame& frame)
      : header(header_of(frame)), payload(frame.payload.begin(), frame.payload.end()) {}

  // From now on it is this message.
  void say(const scheduler::ControlMessage& message) {
    header.type = wire::FrameType::kControl;
    payload = scheduler::encode_control(message);
  }
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

// `machine` reads each such message changed, as if it had been sent so.
template <typename Message>
void change_on_the_way(Cluster& cluster, uint32_t machine,
                       const std::function<void(Message&)>& change) {
  cluster.let_through([&cluster, machine, change](uint32_t reader, const transport::Frame& frame) {
    if (reader != machine || !carries<Message>(frame)) return true;
    KeptFrame kept(frame);
    Message message = message_of<Message>(frame);
    change(message);
    kept.say(message);
    kept.deliver(cluster, machine);
    return false;
  });
}

}  // namespace cgx::sim
