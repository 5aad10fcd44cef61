// One TCP connection: its socket, how far its handshake is, what is under way on it. Internal to
// transport/tcp*; TcpTransport does the deeds.
//
// Thread rule: as the transport that owns it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transport/tcp_handshake.h"
#include "transport/tcp_reader.h"
#include "transport/tcp_sockets.h"

namespace cgx::transport {

struct TcpLink;

constexpr uint32_t kTickMs = 25;
constexpr uint64_t kTrickleBytes = 8 << 10;
constexpr uint32_t kTrickleSegments = 6;  // about as many bytes

// A frame on its way out; pooled. Head and header lie as they travel.
struct TcpSending {
  TcpSending* next = nullptr;
  SendToken token = kNoToken;
  uint64_t number = 0;
  std::span<const std::byte> payload;
  RecordHead head;
  std::byte header[kTcpHeaderBytesMax];

  std::span<const std::byte> caller_header() const { return {header, head.header_bytes}; }
  size_t bytes() const { return head.header_bytes + payload.size(); }
};

// What epoll hands back.
struct TcpWatched {
  enum class Kind : uint8_t { kListener, kTimer, kConnection } kind;
};

struct TcpConnection : TcpWatched {
  enum class Stage : uint8_t {
    kConnecting,  // dialed, not answered
    kGreeting,    // said hello, waits for the welcome
    kAccepted,    // waits for a hello
    kWelcoming,   // said welcome, waits for the proof
    kOpen,        // carries records
    kParting,     // its link is closed: says goodbye, then waits for the peer to hang up
    kDead,        // to be freed when nobody is inside it
  };

  TcpConnection(Socket connected, Stage begins, uint32_t payload_bytes)
      : TcpWatched{Kind::kConnection},
        socket(std::move(connected)),
        stage(begins),
        reader(payload_bytes) {}

  Socket socket;
  Stage stage;
  TcpLink* link = nullptr;  // null: not known yet, or not any more
  std::string host;         // of the peer; for accepted ones
  uint32_t ticks_left = 0;  // until a stage other than kOpen has lasted too long

  bool readable = false, writable = false;  // the last attempt did not show otherwise
  bool ending = false;                      // the peer has hung up: read to the end
  bool active = false;                      // has something to do in this round
  bool hung_up = false;                     // we have, for writing

  TcpHello hello;
  TcpWelcome welcome;
  alignas(8) std::byte heard[sizeof(TcpWelcome)];  // of the message of the handshake under way
  size_t heard_bytes = 0;

  std::optional<Sealer> sealer;
  std::optional<Opener> opener;
  RecordReader reader;

  std::vector<std::byte> loose;  // handshake, acknowledgement, goodbye: leave before frames
  size_t loose_sent = 0;
  TcpSending* current = nullptr;          // the frame that is leaving
  size_t current_sent = 0;                // bytes of it that have left
  std::vector<std::byte> current_sealed;  // kEncrypt: its header and payload, and room beyond
  std::span<const std::byte> sealed_bytes() const {
    return std::span(current_sealed).first(current->bytes());
  }

  // Whether it carries anything: less than kTrickleBytes in kSilentMs is nothing.
  uint64_t left_bytes = 0;   // handed to the system
  uint64_t taken_bytes = 0;  // of those, by the peer's system, when it was last looked at
  uint64_t come_bytes = 0;   // since the last record or so many
  PathState path;            // when either way began to seem silent, or kTrickleSegments ago
};

}  // namespace cgx::transport
