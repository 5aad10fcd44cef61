#include "transport/tcp_handshake.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "proto/wire/bytes.h"

namespace cgx::transport {
namespace {

// `purpose` keeps a MAC made for one place from being good in another.
TcpMac hmac(const LinkSecret& secret, std::string_view purpose, const TcpHello& hello,
            const TcpWelcome& welcome) {
  wire::Writer text;
  text.put_string(purpose);
  text.put(hello);
  text.put(welcome.received);
  text.put(welcome.nonce);
  const std::vector<std::byte> bytes = text.take();
  TcpMac mac;
  unsigned length = 0;
  CGX_ASSERT(::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                    reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                    reinterpret_cast<unsigned char*>(mac.data()), &length) != nullptr &&
             length == mac.size());
  return mac;
}

SealKey make_key(const LinkSecret& secret, const std::string& direction, const TcpHello& hello,
                 const TcpWelcome& welcome) {
  SealKey key;
  const TcpMac cipher = hmac(secret, direction + " cipher", hello, welcome);
  std::copy_n(cipher.begin(), key.cipher.size(), key.cipher.begin());
  constexpr size_t kParts = std::tuple_size_v<wire::ChecksumSecret> / sizeof(TcpMac);
  for (size_t i = 0; i < kParts; ++i) {
    const std::string purpose = direction + " checksum " + std::to_string(i);
    const TcpMac part = hmac(secret, purpose, hello, welcome);
    std::memcpy(key.checksum.data() + i * sizeof part, part.data(), sizeof part);
  }
  return key;
}

}  // namespace

TcpNonce new_tcp_nonce() {
  TcpNonce nonce;
  CGX_ASSERT(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

TcpMac prove_tcp_listener(const LinkSecret& secret, const TcpHello& hello,
                          const TcpWelcome& welcome) {
  return hmac(secret, "cgx tcp listener", hello, welcome);
}

TcpMac prove_tcp_dialer(const LinkSecret& secret, const TcpHello& hello,
                        const TcpWelcome& welcome) {
  return hmac(secret, "cgx tcp dialer", hello, welcome);
}

bool equal_macs(const TcpMac& a, const TcpMac& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

SealKeys make_seal_keys(const LinkSecret& secret, const TcpHello& hello,
                        const TcpWelcome& welcome) {
  return {.to_dialer = make_key(secret, "cgx tcp to dialer", hello, welcome),
          .to_listener = make_key(secret, "cgx tcp to listener", hello, welcome)};
}

}  // namespace cgx::transport
