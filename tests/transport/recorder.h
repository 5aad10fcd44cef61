// What a transport reported, kept for assertions; small makers of frames and links.
#pragma once

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace cgx::transport {

inline std::vector<std::byte> to_bytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Recorder : public Events {
 public:
  struct Received {
    PeerId from;
    std::string header, payload;
  };
  struct Sent {
    PeerId to;
    SendToken token;
    Status status;
  };
  struct Down {
    PeerId peer;
    Status why;
  };

  void on_frame(PeerId from, const Frame& frame) override {
    if (keeps_frames) frames.push_back({from, to_text(frame.header), to_text(frame.payload)});
    if (when_frame) when_frame(from, frame);
  }
  void on_sent(PeerId to, SendToken token, const Status& status) override {
    sent.push_back({to, token, status});
    if (when_sent) when_sent(token);
  }
  void on_peer_down(PeerId peer, const Status& why) override {
    downs.push_back({peer, why});
    sent_before_down = sent.size();
    if (when_down) when_down(peer);
  }

  void on_bytes(PeerId) override { ++pieces; }

  std::vector<Received> frames;
  uint32_t pieces = 0;  // of frames that were not whole yet
  std::vector<Sent> sent;
  std::vector<Down> downs;
  size_t sent_before_down = 0;
  bool keeps_frames = true;
  std::function<void(PeerId, const Frame&)> when_frame;
  std::function<void(SendToken)> when_sent;
  std::function<void(PeerId)> when_down;
};

}  // namespace cgx::transport
