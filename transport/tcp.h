// Frames over TCP connections that prove who they are: nothing of a stranger is parsed but one
// greeting of fixed size, and nothing of a peer is believed before its seal.
//
// Thread rule: a transport lives on the thread that made it; it starts none.
// Invariants: it listens on the given addresses only; a failure ends the connection it happened on;
// what a stranger can hold is bounded in time and number. See README.md for the bytes on the wire.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/address_filter.h"
#include "transport/transport.h"

namespace cgx::transport {

// What vouches for a frame once the connection has proved its key.
enum class TcpSeal : uint8_t {
  kLink,     // a MAC over both headers and a keyed checksum of the payload: strangers are kept out,
             // somebody on the path who forges checksums is not
  kFrame,    // a MAC over everything
  kEncrypt,  // everything but lengths is encrypted, too
};
std::string_view tcp_seal_name(TcpSeal seal);  // "link", "frame", "encrypt"
Result<TcpSeal> find_tcp_seal(std::string_view name);

constexpr size_t kTcpHostsMax = 8;

struct TcpOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // numeric addresses to listen on
  uint16_t port_first = 0;                         // 0 = the system chooses
  uint16_t port_last = 0;
  uint32_t frame_bytes = 256 << 10;  // payload that is received without growing a buffer
  TcpSeal seal = TcpSeal::kLink;
  std::string congestion;  // TCP congestion control of our sockets; empty = the system's
  // TCP_USER_TIMEOUT; 0 = the system's. Longer than any queue: silence is judged here.
  uint32_t stalled_ms = 30000;
  uint32_t handshake_ms = 2000;
  uint32_t lost_ms = 4000;      // a link without a connection for so long is lost
  uint32_t half_open_max = 32;  // connections of one address that have not proved anything yet
  // Whether a numeric address may be dialed, and may dial; empty: all may.
  std::function<bool(const std::string& host)> admits;
  // Whether few descriptors are left once this one is given out: then of the connections that have
  // not proved anything yet all but a few are closed. Empty: never.
  std::function<bool(int descriptor)> few_left;
  // As far as the system can hold them, it drops what else comes, unseen by us; empty: nothing.
  std::vector<AddressRange> admitted;
};

// `events` must outlive the transport. Destroying it cuts every link without a callback.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options, Events& events);

}  // namespace cgx::transport
