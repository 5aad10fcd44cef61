// The transport interface: moves frames between daemons. Knows peers and bytes, nothing of steps,
// codecs or jobs.
//
// Thread rule: one transport belongs to one agent; every call and every callback runs on its
// thread. Invariants: frames of one peer arrive whole, once and in the order of send(), whatever
// their sizes, wherever send() was called from and however many connections carry them, up to the
// moment when on_peer_down says that the link is lost; a frame handed to on_frame is valid only
// during the call; send() buffers stay untouched until on_sent; after on_peer_down no frame of that
// peer arrives and every pending send of it has been reported.
#pragma once

#include <array>
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
  std::span<const std::byte> header;  // small, opaque here
  std::span<const std::byte> payload;
};

// Chosen by the caller of send(), handed back in on_sent: which buffer is free again.
using SendToken = uint64_t;
constexpr SendToken kNoToken = 0;  // no on_sent call wanted (header-only frames)

class Events {
 public:
  virtual ~Events() = default;
  virtual void on_frame(PeerId from, const Frame& frame) = 0;
  // The payload may be reused. OK does not mean arrived, nor even that all bytes have left this
  // process: progress() moves them on.
  virtual void on_sent(PeerId to, SendToken token, const Status& status) = 0;
  virtual void on_peer_down(PeerId peer, const Status& why) = 0;
  // Something came of a frame that is not whole yet, or may still be in a queue on the way; not
  // every transport says so.
  virtual void on_bytes(PeerId from) { (void)from; }
};

// What every transport carries at least, so that control messages (tables, plans) fit in a frame.
// A long frame keeps those behind it waiting: 64 MiB take 0.5 s at 1 Gbit/s.
constexpr uint32_t kFrameBytesMax = 64u << 20;

struct Caps {
  uint32_t header_bytes_max = 0;
  uint32_t frame_bytes_max = 0;   // larger payloads are refused; kFrameBytesMax or more
  uint32_t frame_bytes_best = 0;  // up to here a payload travels in one piece, without a copy;
                                  // larger ones (control messages) may be cut and reassembled
  bool network = true;            // false: only for tests (loopback)
  // A payload arrives as it was at send(), or its link goes down: nobody above need hash it again.
  bool checks_payloads = false;
};

// How one side is reached, exchanged over the authenticated mesh before anybody connects.
struct Endpoint {
  std::vector<std::byte> address;  // transport-specific; from a peer only if authenticated
  std::string settings;            // must be equal on both sides, e.g. "ucx-tcp/1;seg=262144"
};

// Known to the two sides of a link only; never travels.
using LinkSecret = std::array<std::byte, 32>;

// A frame that arrives before its receiver has called connect() is dropped (unknown tag): let both
// sides connect, then send.
struct ConnectOptions {
  Endpoint remote;
  uint64_t inbound_tag = 0;   // frames from this peer carry it (we made it, secret, random)
  uint64_t outbound_tag = 0;  // what our frames to it carry (the peer made it)
  LinkSecret secret{};        // where the transport proves who it is
  bool dials = false;         // of the two sides, the one that connects; the other should be first
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
  // Frames on_sent reported OK still arrive if the peer lives; pending ones report CANCELLED
  // through on_sent from progress(), as soon as the medium has let go of them. The peer hears
  // on_peer_down, this side nothing more of it. Other links, to the same peer too, notice nothing.
  // Needed after on_peer_down too: it frees the id.
  virtual void close(PeerId peer) = 0;

  // Never blocks. Header is copied; payload is not and must stay valid until on_sent(token).
  // on_sent is never called from inside send(). Allowed from inside every callback, as are
  // connect() and close(). An error is the answer for this frame: no on_sent follows.
  virtual Status send(PeerId to, const Frame& frame, SendToken token) = 0;

  // Does what is ready, calls Events; returns how much was done (0 = idle). Not re-entrant.
  virtual int progress() = 0;

  // For sleeping: wait on event_fd() after arm() returned true; false = progress again first. After
  // a wake-up progress() comes first too: arm() does not take in what arrived.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;

  // How long a link may be without its medium from now on, where that is no fault at once.
  virtual void lose_after(uint32_t ms) { (void)ms; }

  // Not OK: it makes no more links, and only another process would. Those that are up go on.
  virtual Status fit() const { return {}; }

  // Bytes handed to the medium and received from it, payload + header, since the start.
  struct Totals {
    uint64_t frames_sent = 0, frames_received = 0;
    uint64_t bytes_sent = 0, bytes_received = 0;
    uint64_t frames_dropped = 0;       // unknown tag, malformed
    uint64_t bytes_copied = 0;         // reassembled by the medium: frames above frame_bytes_best
    uint64_t connections_refused = 0;  // that did not prove the key of a link
    uint64_t connections_lost = 0;     // that broke under a link, which may have got another one
  };
  virtual Totals totals() const = 0;
};

// What send() of every transport refuses: too long, or a payload nobody would give back.
Status check_frame(const Caps& limits, const Frame& frame, SendToken token);

}  // namespace cgx::transport
