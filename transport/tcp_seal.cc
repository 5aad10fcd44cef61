#include "transport/tcp_seal.h"

#include <openssl/crypto.h>

#include <bit>
#include <cstring>

namespace cgx::transport {
namespace {

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Bytes head_text(const RecordHead& head) {
  return std::as_bytes(std::span(&head, 1)).first(kSealedHeadBytes);
}

Voucher keyed_voucher(Bytes payload, const wire::ChecksumSecret& secret) {
  return std::bit_cast<Voucher>(wire::keyed_checksum(payload, secret));
}

bool same(const Voucher& a, const Voucher& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

using Nonce = std::array<std::byte, 12>;

Nonce nonce_of(uint64_t count, SealedPart part) {
  Nonce nonce;
  std::memcpy(nonce.data(), &count, sizeof count);
  std::memcpy(nonce.data() + sizeof count, &part, sizeof part);
  return nonce;
}

void encrypt_block(const unsigned char in[16], unsigned char out[16], const void* cipher) {
  auto* const context = static_cast<EVP_CIPHER_CTX*>(const_cast<void*>(cipher));
  int bytes = 0;
  CGX_ASSERT(::EVP_EncryptUpdate(context, out, &bytes, in, 16) == 1);
}

}  // namespace

Gmac::Gmac(const CipherKey& key) : block_(::EVP_CIPHER_CTX_new()) {
  CGX_ASSERT(::EVP_EncryptInit_ex(block_.get(), ::EVP_aes_128_ecb(), nullptr, raw(key.data()),
                                  nullptr) == 1);
  ::EVP_CIPHER_CTX_set_padding(block_.get(), 0);
  context_.reset(::CRYPTO_gcm128_new(block_.get(), encrypt_block));
  CGX_ASSERT(context_ != nullptr);
}

Voucher Gmac::mac(uint64_t count, SealedPart part, std::initializer_list<Bytes> texts) {
  const Nonce nonce = nonce_of(count, part);
  ::CRYPTO_gcm128_setiv(context_.get(), raw(nonce.data()), nonce.size());
  for (const Bytes text : texts) {
    if (text.empty()) continue;
    CGX_ASSERT(::CRYPTO_gcm128_aad(context_.get(), raw(text.data()), text.size()) == 0);
  }
  Voucher voucher;
  ::CRYPTO_gcm128_tag(context_.get(), raw(voucher.data()), voucher.size());
  return voucher;
}

Gcm::Gcm(const CipherKey& key, Way way) : context_(::EVP_CIPHER_CTX_new()) {
  CGX_ASSERT(::EVP_CipherInit_ex(context_.get(), ::EVP_aes_128_gcm(), nullptr, raw(key.data()),
                                 nullptr, static_cast<int>(way)) == 1);
}

void Gcm::begin(uint64_t count) {
  const Nonce nonce = nonce_of(count, SealedPart::kBody);
  CGX_ASSERT(
      ::EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, raw(nonce.data()), -1) == 1);
}

Voucher Gcm::end() {
  Voucher voucher;
  int bytes = 0;
  CGX_ASSERT(::EVP_CipherFinal_ex(context_.get(), raw(voucher.data()), &bytes) == 1);
  CGX_ASSERT(::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, voucher.size(),
                                   voucher.data()) == 1);
  return voucher;
}

Voucher Gcm::encrypt(uint64_t count, std::initializer_list<Bytes> plain, std::byte* to) {
  begin(count);
  int bytes = 0;
  for (const Bytes text : plain) {
    if (text.empty()) continue;
    CGX_ASSERT(::EVP_CipherUpdate(context_.get(), raw(to), &bytes, raw(text.data()),
                                  static_cast<int>(text.size())) == 1);
    to += text.size();
  }
  return end();
}

bool Gcm::decrypt(uint64_t count, std::initializer_list<std::span<std::byte>> texts,
                  Voucher voucher) {
  begin(count);
  int bytes = 0;
  for (const std::span<std::byte> text : texts) {
    if (text.empty()) continue;
    CGX_ASSERT(::EVP_CipherUpdate(context_.get(), raw(text.data()), &bytes, raw(text.data()),
                                  static_cast<int>(text.size())) == 1);
  }
  CGX_ASSERT(::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, voucher.size(),
                                   voucher.data()) == 1);
  std::byte none;
  return ::EVP_CipherFinal_ex(context_.get(), raw(&none), &bytes) == 1;
}

Sealer::Sealer(TcpSeal seal, const SealKey& key)
    : seal_(seal),
      checksum_(key.checksum),
      macs_(key.cipher),
      cipher_(key.cipher, Gcm::Way::kSeal) {}

void Sealer::seal(RecordHead& head, Bytes header, Bytes payload, std::byte* sealed) {
  const uint64_t count = count_++;
  head.voucher = {};
  switch (seal_) {
    case TcpSeal::kLink:
      if (!payload.empty()) head.voucher = keyed_voucher(payload, checksum_);
      break;
    case TcpSeal::kFrame:
      if (!payload.empty()) head.voucher = macs_.mac(count, SealedPart::kBody, {payload});
      break;
    case TcpSeal::kEncrypt:
      head.voucher = cipher_.encrypt(count, {header, payload}, sealed);
      header = {sealed, header.size()};
      break;
  }
  head.mac = macs_.mac(count, SealedPart::kHead, {head_text(head), header});
}

Opener::Opener(TcpSeal seal, const SealKey& key)
    : seal_(seal),
      checksum_(key.checksum),
      macs_(key.cipher),
      cipher_(key.cipher, Gcm::Way::kOpen) {}

bool Opener::open_head(const RecordHead& head, Bytes header) {
  return same(macs_.mac(count_++, SealedPart::kHead, {head_text(head), header}), head.mac);
}

bool Opener::open_body(const RecordHead& head, std::span<std::byte> header,
                       std::span<std::byte> payload) {
  const uint64_t count = count_ - 1;
  switch (seal_) {
    case TcpSeal::kLink:
      return payload.empty() || same(keyed_voucher(payload, checksum_), head.voucher);
    case TcpSeal::kFrame:
      return payload.empty() || same(macs_.mac(count, SealedPart::kBody, {payload}), head.voucher);
    case TcpSeal::kEncrypt:
      return cipher_.decrypt(count, {header, payload}, head.voucher);
  }
  return false;
}

}  // namespace cgx::transport
