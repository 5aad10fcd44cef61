// Records in and out of a connection.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp_transport.h"

namespace cgx::transport {
namespace {

using Stage = TcpConnection::Stage;

constexpr size_t kBytesPerTurn = 1 << 20;         // of one connection, written in one round
constexpr size_t kBytesPerShortTurn = 256 << 10;  // where others are ready, too
// Taken in without a word: then an acknowledgement goes by itself, for the sender's buffers.
constexpr uint64_t kToldBytesMax = 256 << 10;
constexpr size_t kGatheredBytes = 2048;

iovec iovec_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

ssize_t send_scattered(int socket, const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// So few bytes are sooner copied than described to the system piece by piece.
ssize_t send_gathered(int socket, const iovec* parts, int count) {
  std::byte bytes[kGatheredBytes];
  size_t size = 0;
  for (int i = 0; i < count; ++i) {
    std::memcpy(bytes + size, parts[i].iov_base, parts[i].iov_len);
    size += parts[i].iov_len;
  }
  return ::send(socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// What is left of two spans after `done` bytes of them.
int rest_of(std::span<const std::byte> first, std::span<const std::byte> second, size_t done,
            iovec* parts) {
  int count = 0;
  for (const auto bytes : {first, second}) {
    const size_t gone = std::min(done, bytes.size());
    done -= gone;
    if (gone < bytes.size()) parts[count++] = iovec_of(bytes.subspan(gone));
  }
  return count;
}

}  // namespace

int TcpTransport::read(TcpConnection& connection) {
  switch (connection.stage) {
    case Stage::kOpen:
      return read_records(connection);
    case Stage::kParting:
      return discard(connection);
    case Stage::kGreeting:
    case Stage::kAccepted:
    case Stage::kWelcoming:
      return read_handshake(connection);
    case Stage::kConnecting:
    case Stage::kDead:
      return 0;
  }
  return 0;
}

size_t TcpTransport::receive(TcpConnection& connection, const iovec* parts, int count,
                             size_t bytes) {
  const int socket = connection.socket.get();
  const ssize_t got = count == 1 ? ::recv(socket, parts->iov_base, parts->iov_len, MSG_DONTWAIT)
                                 : ::readv(socket, parts, count);
  if (got > 0) {
    // A short read has emptied the socket; the next event tells of more.
    if (static_cast<size_t>(got) < bytes && !connection.ending) connection.readable = false;
    return static_cast<size_t>(got);
  }
  if (got < 0 && errno == EINTR) return 0;
  connection.readable = false;
  if (got < 0 && errno == EAGAIN) return 0;
  fail(connection,
       {StatusCode::kPEER_LOST, got == 0 ? "the connection was closed" : std::strerror(errno)});
  return 0;
}

void TcpTransport::came(TcpConnection& connection) {
  connection.come_bytes = 0;
  connection.link->silent_ticks = 0;
}

int TcpTransport::read_records(TcpConnection& connection) {
  const RecordReader::Room room = connection.reader.room();
  const size_t bytes = receive(connection, room.parts.data(), room.count, room.bytes);
  if (bytes == 0) return 0;
  connection.reader.filled(bytes);
  connection.come_bytes += bytes;
  if (connection.come_bytes >= kTrickleBytes) came(connection);
  int count = 1;
  RecordReader::Record record;
  while (connection.stage == Stage::kOpen) {
    const Result<bool> whole = connection.reader.next(*connection.opener, record);
    if (!whole.ok()) {
      fail(connection, whole.status());
      break;
    }
    if (!*whole) break;
    if (!take(connection, record)) break;
    ++count;
  }
  if (connection.stage == Stage::kOpen && count == 1) events_.on_bytes(connection.link->id);
  if (connection.stage == Stage::kOpen && connection.link->told_bytes >= kToldBytesMax) {
    acknowledge(connection);
  }
  return count;
}

// False: the connection carries no more records.
bool TcpTransport::take(TcpConnection& connection, const RecordReader::Record& record) {
  TcpLink& link = *connection.link;
  if (!take_acknowledgement(link, record.head.received)) {
    lose(link, "it acknowledged what was never sent");
    return false;
  }
  came(connection);
  switch (record.head.type) {
    case RecordType::kGoodbye:
      lose(link, "closed by the peer");
      return false;
    case RecordType::kAck:
      return true;
    case RecordType::kFrame:
      return take_frame(connection, record);
  }
  return false;
}

bool TcpTransport::take_frame(TcpConnection& connection, const RecordReader::Record& record) {
  TcpLink& link = *connection.link;
  if (record.head.number <= link.received) return true;  // came over an earlier connection, too
  if (record.head.number != link.received + 1) {
    fail(connection, protocol_error("frame " + std::to_string(record.head.number) + " came where " +
                                    std::to_string(link.received + 1) + " was due"));
    return false;
  }
  ++link.received;
  link.got_through();
  link.told_bytes += record.frame.payload.size();
  start_ticking();  // to acknowledge it, if nothing else does
  totals_.frames_received += 1;
  totals_.bytes_received += record.frame.header.size() + record.frame.payload.size();
  events_.on_frame(link.id, record.frame);
  return connection.stage == Stage::kOpen;
}

bool TcpTransport::take_acknowledgement(TcpLink& link, uint64_t received) {
  if (received > link.sent) return false;
  if (received <= link.acked) return true;
  link.acked = received;
  link.deaf_ticks = 0;
  link.got_through();
  release(link);
  return true;
}

// But for the one that is leaving again just now: it is needed whole.
void TcpTransport::release(TcpLink& link) {
  const TcpSending* leaving = link.connection ? link.connection->current : nullptr;
  while (link.first != nullptr && link.first->number <= link.acked && link.first != leaving) {
    TcpSending& sending = *link.first;
    if (link.unsent == &sending) link.unsent = sending.next;
    link.first = sending.next;
    if (sending.token != kNoToken) completions_.add(link.id, sending.token, {});
    free_sending(sending);
  }
  if (link.first == nullptr) link.last = nullptr;
}

// Frames that wait to leave say it anyway.
void TcpTransport::acknowledge(TcpConnection& connection) {
  const TcpLink& link = *connection.link;
  if (link.told == link.received || link.unsent != nullptr) return;
  say(connection, RecordType::kAck);
}

int TcpTransport::read_handshake(TcpConnection& connection) {
  const size_t wanted = expected(connection) - connection.heard_bytes;
  const iovec room{connection.heard + connection.heard_bytes, wanted};
  const size_t bytes = receive(connection, &room, 1, wanted);
  connection.heard_bytes += bytes;
  if (bytes == wanted) take_handshake(connection);
  return bytes > 0;
}

// What comes after our goodbye: nobody wants it, but a socket closed before it is read would cut
// off what we have sent.
int TcpTransport::discard(TcpConnection& connection) {
  std::byte bytes[16 << 10];
  const iovec room{bytes, sizeof bytes};
  return receive(connection, &room, 1, sizeof bytes) > 0;
}

int TcpTransport::write(TcpConnection& connection) {
  size_t left = working_.size() > 1 ? kBytesPerShortTurn : kBytesPerTurn;
  int count = 0;
  while (connection.writable && left > 0) {
    if (!connection.loose.empty() && connection.current == nullptr) {
      if (!write_loose(connection)) break;
      ++count;
      continue;
    }
    if (connection.stage != Stage::kOpen || connection.link->unsent == nullptr) break;
    const size_t bytes = connection.link->unsent->bytes();
    if (!write_frame(connection)) break;
    left -= std::min(left, bytes);
    ++count;
  }
  if (left == 0) activate(connection);
  return count;
}

// False: not all of it has left.
bool TcpTransport::write_loose(TcpConnection& connection) {
  const auto rest = std::span<const std::byte>(connection.loose).subspan(connection.loose_sent);
  const iovec text = iovec_of(rest);
  const size_t sent = transmit(connection, &text, 1);
  connection.loose_sent += sent;
  if (sent < rest.size()) return false;
  connection.loose.clear();
  connection.loose_sent = 0;
  if (connection.stage == Stage::kParting && !std::exchange(connection.hung_up, true)) {
    ::shutdown(connection.socket.get(), SHUT_WR);
  }
  return true;
}

bool TcpTransport::write_frame(TcpConnection& connection) {
  TcpSending& sending = *connection.link->unsent;
  if (connection.current == nullptr) seal(connection, sending);
  const bool encrypted = options_.seal == TcpSeal::kEncrypt;
  const auto head = std::as_bytes(std::span(&sending.head, 1));
  const std::span<const std::byte> clear(head.data(), head.size() + sending.head.header_bytes);
  iovec parts[2];
  const int count = encrypted
                        ? rest_of(head, connection.sealed_bytes(), connection.current_sent, parts)
                        : rest_of(clear, sending.payload, connection.current_sent, parts);
  connection.current_sent += transmit(connection, parts, count);
  if (connection.stage != Stage::kOpen) return false;
  if (connection.current_sent < sizeof(RecordHead) + sending.bytes()) return false;
  finish_frame(connection);
  return true;
}

// As late as possible: what is hashed here is copied from the cache next.
void TcpTransport::seal(TcpConnection& connection, TcpSending& sending) {
  connection.current = &sending;
  connection.current_sent = 0;
  sending.head.received = connection.link->received;
  connection.link->told = connection.link->received;
  connection.link->told_bytes = 0;
  std::vector<std::byte>& sealed = connection.current_sealed;  // never shorter: growing clears
  if (options_.seal == TcpSeal::kEncrypt) sealed.resize(std::max(sealed.size(), sending.bytes()));
  connection.sealer->seal(sending.head, sending.caller_header(), sending.payload, sealed.data());
}

// Bytes the socket took.
size_t TcpTransport::transmit(TcpConnection& connection, const iovec* parts, int count) {
  size_t wanted = 0;
  for (int i = 0; i < count; ++i) wanted += parts[i].iov_len;
  const ssize_t sent = wanted <= kGatheredBytes
                           ? send_gathered(connection.socket.get(), parts, count)
                           : send_scattered(connection.socket.get(), parts, count);
  if (sent >= 0) {
    connection.left_bytes += static_cast<uint64_t>(sent);
    if (static_cast<size_t>(sent) < wanted) connection.writable = false;
    return static_cast<size_t>(sent);
  }
  if (errno == EINTR) return 0;
  connection.writable = false;
  if (errno != EAGAIN) fail(connection, {StatusCode::kPEER_LOST, std::strerror(errno)});
  return 0;
}

void TcpTransport::finish_frame(TcpConnection& connection) {
  TcpLink& link = *connection.link;
  TcpSending& sending = *link.unsent;
  totals_.frames_sent += 1;
  totals_.bytes_sent += sending.bytes();
  connection.current = nullptr;
  link.unsent = sending.next;
  if (sending.payload.empty() && sending.token != kNoToken) {  // nothing that anybody waits for
    completions_.add(link.id, std::exchange(sending.token, kNoToken), {});
  }
  if (sending.number <= link.acked) release(link);
}

// A record of our own, between two frames.
void TcpTransport::say(TcpConnection& connection, RecordType type) {
  TcpLink& link = *connection.link;
  RecordHead head{.type = type, .number = link.sent, .received = link.received};
  link.told = link.received;
  link.told_bytes = 0;
  connection.sealer->seal(head, {}, {}, connection.current_sealed.data());
  tell(connection, std::as_bytes(std::span(&head, 1)));
}

}  // namespace cgx::transport
