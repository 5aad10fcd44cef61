// The parser of what a tcp connection carries: records in pieces of any size, and heads that lie.
#include "transport/tcp_reader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace cgx::transport {
namespace {

SealKey key_of(uint8_t seed) {
  SealKey key;
  key.cipher.fill(std::byte{seed});
  for (size_t i = 0; i < key.checksum.size(); ++i)
    key.checksum[i] = static_cast<std::byte>(i * 7 + seed);
  return key;
}

class Stream {
 public:
  explicit Stream(TcpSeal seal) : seal_(seal), sealer_(seal, key_of(1)) {}

  void add(RecordHead head, std::span<const std::byte> header, std::span<const std::byte> payload) {
    std::vector<std::byte> sealed(header.size() + payload.size());
    sealer_.seal(head, header, payload, sealed.data());
    append(std::as_bytes(std::span(&head, 1)));
    if (seal_ == TcpSeal::kEncrypt) return append(sealed);
    append(header);
    append(payload);
  }
  void add_frame(uint64_t number, std::span<const std::byte> header,
                 std::span<const std::byte> payload) {
    add({.payload_bytes = static_cast<uint32_t>(payload.size()),
         .header_bytes = static_cast<uint16_t>(header.size()),
         .number = number},
        header, payload);
  }
  std::vector<std::byte> bytes;

 private:
  void append(std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  const TcpSeal seal_;
  Sealer sealer_;
};

// A second way to the same bits: libcrypto's own AES-GCM.
Voucher gmac_by_evp(const CipherKey& key, uint64_t count, SealedPart part, Bytes text) {
  const CipherContext context(::EVP_CIPHER_CTX_new());
  std::array<unsigned char, 12> nonce;
  std::memcpy(nonce.data(), &count, sizeof count);
  std::memcpy(nonce.data() + sizeof count, &part, sizeof part);
  Voucher voucher;
  int bytes = 0;
  const auto* secret = reinterpret_cast<const unsigned char*>(key.data());
  ::EVP_EncryptInit_ex(context.get(), ::EVP_aes_128_gcm(), nullptr, secret, nonce.data());
  ::EVP_EncryptUpdate(context.get(), nullptr, &bytes,
                      reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  std::array<unsigned char, 16> none;
  ::EVP_EncryptFinal_ex(context.get(), none.data(), &bytes);
  ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, voucher.size(), voucher.data());
  return voucher;
}

TEST(TcpSeal, MacsAreThoseOfAesGcmHoweverTheTextIsCut) {
  std::mt19937 random(4);
  const CipherKey key = key_of(3).cipher;
  Gmac macs(key);
  for (uint64_t i = 0; i < 300; ++i) {
    std::vector<std::byte> text(random() % 600);
    for (std::byte& each : text) each = static_cast<std::byte>(random());
    const uint64_t count = i * 0x1'0000'0001;
    const SealedPart part = i % 2 ? SealedPart::kHead : SealedPart::kBody;
    const Bytes all(text);
    const size_t cut = text.empty() ? 0 : random() % text.size();
    EXPECT_EQ(macs.mac(count, part, {all.first(cut), all.subspan(cut)}),
              gmac_by_evp(key, count, part, all));
  }
}

// Gives the reader at most `piece` bytes at a time; calls `each` with every record.
template <typename Each>
Status feed(RecordReader& reader, Opener& opener, std::span<const std::byte> bytes, size_t piece,
            Each each) {
  while (!bytes.empty()) {
    const RecordReader::Room room = reader.room();
    size_t given = 0;
    for (int i = 0; i < room.count && given < piece && !bytes.empty(); ++i) {
      const size_t part = std::min({room.parts[i].iov_len, piece - given, bytes.size()});
      std::memcpy(room.parts[i].iov_base, bytes.data(), part);
      bytes = bytes.subspan(part);
      given += part;
    }
    reader.filled(given);
    RecordReader::Record record;
    for (;;) {
      CGX_ASSIGN_OR_RETURN(const bool whole, reader.next(opener, record));
      if (!whole) break;
      each(record);
    }
  }
  return {};
}

class TcpReader : public ::testing::TestWithParam<TcpSeal> {};

TEST_P(TcpReader, CutsRecordsOutOfPiecesOfAnySize) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> headers, payloads;
  Stream stream(GetParam());
  for (uint64_t i = 0; i < 40; ++i) {
    headers.emplace_back(random() % (kTcpHeaderBytesMax + 1));
    payloads.emplace_back(i % 5 == 0 ? random() % 30'000 : random() % 3 * (random() % 5000));
    for (auto* bytes : {&headers.back(), &payloads.back()}) {
      for (std::byte& each : *bytes) each = static_cast<std::byte>(random());
    }
    stream.add_frame(i, headers.back(), payloads.back());
  }
  for (const size_t piece : {1u, 2u, 57u, 1000u, 4096u, 1u << 20}) {
    RecordReader reader(20'000);
    Opener opener(GetParam(), key_of(1));
    size_t next = 0;
    const Status status = feed(reader, opener, stream.bytes, piece, [&](const auto& record) {
      ASSERT_EQ(record.head.number, next);
      EXPECT_TRUE(std::ranges::equal(record.frame.header, headers[next]));
      EXPECT_TRUE(std::ranges::equal(record.frame.payload, payloads[next]));
      ++next;
    });
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(next, headers.size()) << "in pieces of " << piece;
  }
}

TEST_P(TcpReader, RefusesEveryFlippedBit) {
  const std::vector<std::byte> header(20, std::byte{1}), payload(100, std::byte{2});
  Stream stream(GetParam());
  stream.add_frame(1, header, payload);
  for (size_t bit = 0; bit < stream.bytes.size() * 8; ++bit) {
    std::vector<std::byte> bytes = stream.bytes;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    bytes.resize(bytes.size() + 8192);  // whatever length it claims, there is something
    RecordReader reader(20'000);
    Opener opener(GetParam(), key_of(1));
    const Status status = feed(reader, opener, bytes, bytes.size(),
                               [&](const auto&) { ADD_FAILURE() << "bit " << bit; });
    EXPECT_FALSE(status.ok()) << "bit " << bit;
  }
}

TEST_P(TcpReader, RefusesARecordTwiceAndOneThatIsMissing) {
  const std::vector<std::byte> header(20), payload(100);
  Stream stream(GetParam());
  stream.add_frame(1, header, payload);
  const size_t one = stream.bytes.size();
  stream.add_frame(2, header, payload);
  std::vector<std::byte> twice = stream.bytes;
  std::copy_n(stream.bytes.begin(), one, twice.begin() + static_cast<ptrdiff_t>(one));
  for (const auto& bytes : {twice, std::vector(stream.bytes.begin() + static_cast<ptrdiff_t>(one),
                                               stream.bytes.end())}) {
    RecordReader reader(20'000);
    Opener opener(GetParam(), key_of(1));
    EXPECT_EQ(feed(reader, opener, bytes, 4096, [](const auto&) {}).code(), StatusCode::kCORRUPT);
  }
}

// Even from a peer that knows the key.
TEST_P(TcpReader, RefusesLengthsBeyondItsLimits) {
  const RecordHead lies[] = {
      {.payload_bytes = kFrameBytesMax + 1},
      {.payload_bytes = UINT32_MAX},
      {.header_bytes = kTcpHeaderBytesMax + 1},
      {.header_bytes = 1, .type = RecordType::kAck},
      {.payload_bytes = 1, .type = RecordType::kGoodbye},
      {.type = static_cast<RecordType>(9)},
      {.reserved = 1},
  };
  for (const RecordHead& lie : lies) {
    Stream stream(GetParam());
    stream.add(lie, {}, {});
    RecordReader reader(20'000);
    Opener opener(GetParam(), key_of(1));
    EXPECT_EQ(feed(reader, opener, stream.bytes, 4096, [](const auto&) {}).code(),
              StatusCode::kPROTOCOL_ERROR);
  }
}

TEST_P(TcpReader, RefusesAnotherKey) {
  Stream stream(GetParam());
  stream.add_frame(1, {}, {});
  RecordReader reader(20'000);
  Opener opener(GetParam(), key_of(2));
  EXPECT_EQ(feed(reader, opener, stream.bytes, 4096, [](const auto&) {}).code(),
            StatusCode::kCORRUPT);
}

INSTANTIATE_TEST_SUITE_P(Seals, TcpReader,
                         ::testing::Values(TcpSeal::kLink, TcpSeal::kFrame, TcpSeal::kEncrypt),
                         [](const auto& info) { return std::string(tcp_seal_name(info.param)); });

}  // namespace
}  // namespace cgx::transport
