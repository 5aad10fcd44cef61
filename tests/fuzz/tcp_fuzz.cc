// What strangers and peers can send to the tcp transport: records whose seals are wrong, records of
// a peer that knows the key and lies, and addresses that came over the mesh.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/tcp.h"
#include "transport/tcp_reader.h"

namespace {

using namespace cgx;
using namespace cgx::transport;
using Input = std::span<const std::byte>;

constexpr size_t kUsualBytes = 10'000;

void require(bool condition) {
  if (!condition) std::abort();
}

const SealKey& key() {
  static const SealKey made = [] {
    SealKey key;
    key.cipher.fill(std::byte{5});
    key.checksum.fill(std::byte{6});
    return key;
  }();
  return made;
}

Input take(Input& rest, size_t bytes) {
  const Input taken = rest.first(std::min(bytes, rest.size()));
  rest = rest.subspan(taken.size());
  return taken;
}

size_t take_number(Input& rest) {
  const Input byte = take(rest, 1);
  return byte.empty() ? 0 : static_cast<size_t>(byte[0]);
}

// Records come whole: of the lengths their heads say.
void read(TcpSeal seal, Input bytes, size_t piece) {
  RecordReader reader(kUsualBytes);
  Opener opener(seal, key());
  while (!bytes.empty()) {
    const RecordReader::Room room = reader.room();
    require(room.bytes > 0);
    size_t given = 0;
    for (int i = 0; i < room.count; ++i) {
      const Input part = take(bytes, std::min(room.parts[i].iov_len, piece));
      std::copy(part.begin(), part.end(), static_cast<std::byte*>(room.parts[i].iov_base));
      given += part.size();
      if (part.size() < room.parts[i].iov_len) break;
    }
    reader.filled(given);
    RecordReader::Record record;
    for (;;) {
      const Result<bool> whole = reader.next(opener, record);
      if (!whole.ok()) return;
      if (!*whole) break;
      require(record.frame.header.size() == record.head.header_bytes);
      require(record.frame.payload.size() == record.head.payload_bytes);
    }
  }
}

// A peer's records: heads as the input says them, sealed as they should be.
void lie(TcpSeal seal, Input rest, size_t piece) {
  Sealer sealer(seal, key());
  std::vector<std::byte> stream;
  while (!rest.empty()) {
    RecordHead head;
    const Input said = take(rest, kSealedHeadBytes - sizeof head.voucher);
    std::memcpy(static_cast<void*>(&head), said.data(), said.size());
    const Input header = take(rest, take_number(rest)),
                payload = take(rest, take_number(rest) * 64);
    if (take_number(rest) % 4 != 0) {  // mostly honest about the lengths
      head.header_bytes = static_cast<uint16_t>(header.size());
      head.payload_bytes = static_cast<uint32_t>(payload.size());
    }
    std::vector<std::byte> sealed(header.size() + payload.size());
    sealer.seal(head, header, payload, sealed.data());
    const Input text = std::as_bytes(std::span(&head, 1));
    stream.insert(stream.end(), text.begin(), text.end());
    if (seal == TcpSeal::kEncrypt) {
      stream.insert(stream.end(), sealed.begin(), sealed.end());
    } else {
      stream.insert(stream.end(), header.begin(), header.end());
      stream.insert(stream.end(), payload.begin(), payload.end());
    }
  }
  read(seal, stream, piece);
}

struct NoEvents final : Events {
  void on_frame(PeerId, const Frame&) override {}
  void on_sent(PeerId, SendToken, const Status&) override {}
  void on_peer_down(PeerId, const Status&) override {}
};

void connect(Input address) {
  NoEvents events;
  const std::unique_ptr<Transport> transport = *make_tcp_transport({}, events);
  ConnectOptions options{.remote = *transport->local_endpoint(), .inbound_tag = 1};
  options.remote.address.assign(address.begin(), address.end());
  const Result<PeerId> peer = transport->connect(options);
  if (peer.ok()) transport->close(*peer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input rest = std::as_bytes(std::span(data, size));
  const size_t choice = take_number(rest);
  const size_t piece = take_number(rest) * take_number(rest) + 1;
  const auto seal = static_cast<TcpSeal>(choice / 3 % 3);
  switch (choice % 3) {
    case 0:
      read(seal, rest, piece);
      break;
    case 1:
      lie(seal, rest, piece);
      break;
    case 2:
      connect(rest);
      break;
  }
  return 0;
}
