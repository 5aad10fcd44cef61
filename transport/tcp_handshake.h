// How a connection proves, before anything else is read from it, that both sides know the link's
// secret; what they agree on. Internal to transport/tcp*.
//
//   dialer -> listener  TcpHello     which link, a nonce
//   dialer <- listener  TcpWelcome   a nonce, and a MAC over both
//   dialer -> listener  TcpProof     a MAC over both
//
// A replayed greeting gets a fresh nonce and ends there. Both MACs and all keys are HMAC-SHA256
// under the link's secret, over everything that was said. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/tcp_seal.h"

namespace cgx::transport {

constexpr uint64_t kTcpMagic = 0x312f'7063'7478'6763;  // "cgxtcp/1"
using TcpNonce = std::array<std::byte, 32>;
using TcpMac = std::array<std::byte, 32>;

struct TcpHello {
  uint64_t magic = kTcpMagic;
  uint64_t tag = 0;       // of the link: the listener made it
  uint64_t received = 0;  // frames the dialer has taken in on earlier connections of the link
  TcpNonce nonce{};
};
struct TcpWelcome {
  uint64_t received = 0;
  TcpNonce nonce{};
  TcpMac mac{};
};
struct TcpProof {
  TcpMac mac{};
};
static_assert(sizeof(TcpHello) == 56 && sizeof(TcpWelcome) == 72 && sizeof(TcpProof) == 32);

TcpNonce new_tcp_nonce();
TcpMac prove_tcp_listener(const LinkSecret& secret, const TcpHello& hello,
                          const TcpWelcome& welcome);
TcpMac prove_tcp_dialer(const LinkSecret& secret, const TcpHello& hello, const TcpWelcome& welcome);
bool equal_macs(const TcpMac& a, const TcpMac& b);

struct SealKeys {
  SealKey to_dialer, to_listener;
};
SealKeys make_seal_keys(const LinkSecret& secret, const TcpHello& hello, const TcpWelcome& welcome);

}  // namespace cgx::transport
