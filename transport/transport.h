// The transport interface: moves frames between daemons. Knows peers and bytes, nothing of steps,
// codecs or jobs.
//
// Thread rule: one transport belongs to one agent; every call and every callback runs on its thread.
// Invariants: frames of one peer arrive whole or not at all; a frame handed to on_frame is valid only
// during the call; send() buffers stay untouched until on_sent; after on_peer_down no frame of that
// peer arrives and every pending send of it has been reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::transport {

// A connected peer on this endpoint: index + generation, never reused while anything refers to it.
struct PeerId {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;
  friend bool operator==(PeerId, PeerId) = default;
};

struct Frame {
  std::span<const std::byte> header;   // small, opaque here
  std::span<const std::byte> payload;
};

// Chosen by the caller of send(), handed back in on_sent: which buffer is free again.
using SendToken = uint64_t;
constexpr SendToken kNoToken = 0;  // no on_sent call wanted (header-only frames)

class Events {
 public:
  virtual ~Events() = default;
  virtual void on_frame(PeerId from, const Frame& frame) = 0;
  virtual void on_sent(PeerId to, SendToken token, const Status& status) = 0;
  virtual void on_peer_down(PeerId peer, const Status& why) = 0;
};

struct Caps {
  uint32_t header_bytes_max = 0;
  uint32_t frame_bytes_max = 0;    // payload that travels as one piece; larger ones are refused
  uint32_t frame_bytes_best = 0;   // payload size the medium likes
  bool network = true;             // false: only for tests (loopback)
};

// How one side is reached, exchanged over the authenticated mesh before anybody connects.
struct Endpoint {
  std::vector<std::byte> address;  // transport-specific
  std::string settings;            // must be equal on both sides, e.g. "ucx-tcp/1;seg=262144"
};

struct ConnectOptions {
  Endpoint remote;
  uint64_t inbound_tag = 0;   // frames from this peer carry it (we made it, secret, random)
  uint64_t outbound_tag = 0;  // what our frames to it carry (the peer made it)
  std::string name;           // for messages: "machine 2 (10.0.0.3)"
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual Caps caps() const = 0;
  virtual Result<Endpoint> local_endpoint() = 0;

  // Never blocks. Frames may be sent at once; they are queued until the link is up.
  virtual Result<PeerId> connect(const ConnectOptions& options) = 0;
  virtual void close(PeerId peer) = 0;  // pending sends report CANCELLED through on_sent

  // Never blocks. Header is copied; payload is not and must stay valid until on_sent(token).
  // on_sent is never called from inside send(). Allowed from inside on_frame.
  virtual Status send(PeerId to, const Frame& frame, SendToken token) = 0;

  // Does what is ready, calls Events; returns how much was done (0 = idle). Not re-entrant.
  virtual int progress() = 0;

  // For sleeping: wait on event_fd() after arm() returned true; false = progress again first.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;

  // Bytes handed to the medium and received from it, payload + header, since the start.
  struct Totals {
    uint64_t frames_sent = 0, frames_received = 0;
    uint64_t bytes_sent = 0, bytes_received = 0;
    uint64_t frames_dropped = 0;  // unknown tag, malformed
  };
  virtual Totals totals() const = 0;
};

}  // namespace cgx::transport
