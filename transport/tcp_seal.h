// Seals records and checks seals: AES-128-GCM with a counter, one object per direction of one
// connection. Internal to transport/tcp*.
//
// Thread rule: as the connection that owns it.
// Invariants: keys serve one direction of one connection; a nonce is used once, so records are
// opened in the order in which they were sealed, and a repeated or missing one does not open.
#pragma once

#include <openssl/evp.h>
#include <openssl/modes.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <span>

#include "proto/wire/frame.h"
#include "transport/tcp.h"
#include "transport/tcp_record.h"

namespace cgx::transport {

struct SealKey {
  std::array<std::byte, 16> cipher{};
  wire::ChecksumSecret checksum{};
};

using Bytes = std::span<const std::byte>;

using CipherKey = std::array<std::byte, 16>;

// Nonces count records; each has two.
enum class SealedPart : uint32_t { kHead = 0, kBody = 1 };

struct CipherRelease {
  void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, CipherRelease>;

// AES-GCM of texts that are not encrypted (GMAC). From libcrypto's parts: its EVP interface takes
// 0.27 us for a head, most of it around the arithmetic, and these 0.10.
class Gmac {
 public:
  explicit Gmac(const CipherKey& key);

  Voucher mac(uint64_t count, SealedPart part, std::initializer_list<Bytes> texts);

 private:
  struct Release {
    void operator()(GCM128_CONTEXT* context) const { ::CRYPTO_gcm128_release(context); }
  };
  CipherContext block_;  // AES itself; context_ calls it
  std::unique_ptr<GCM128_CONTEXT, Release> context_;
};

// AES-GCM.
class Gcm {
 public:
  enum class Way : int { kOpen = 0, kSeal = 1 };

  Gcm(const CipherKey& key, Way way);

  Voucher encrypt(uint64_t count, std::initializer_list<Bytes> plain, std::byte* to);
  // In place. False: not what was encrypted.
  bool decrypt(uint64_t count, std::initializer_list<std::span<std::byte>> texts, Voucher voucher);

 private:
  void begin(uint64_t count);
  Voucher end();

  CipherContext context_;
};

class Sealer {
 public:
  Sealer(TcpSeal seal, const SealKey& key);

  // Fills voucher and mac. kEncrypt: header and payload are written to `sealed`, else it is unused.
  void seal(RecordHead& head, Bytes header, Bytes payload, std::byte* sealed);

 private:
  const TcpSeal seal_;
  const wire::ChecksumSecret checksum_;
  Gmac macs_;
  Gcm cipher_;
  uint64_t count_ = 0;
};

class Opener {
 public:
  Opener(TcpSeal seal, const SealKey& key);

  // `header` is as it came: still encrypted where it is. Every record once, in order.
  bool open_head(const RecordHead& head, Bytes header);
  // After open_head; decrypts in place.
  bool open_body(const RecordHead& head, std::span<std::byte> header, std::span<std::byte> payload);

 private:
  const TcpSeal seal_;
  const wire::ChecksumSecret checksum_;
  Gmac macs_;
  Gcm cipher_;
  uint64_t count_ = 0;
};

}  // namespace cgx::transport
