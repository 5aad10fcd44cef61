#include "proto/wire/session_messages.h"

#include <cstring>

#include "proto/wire/bytes.h"

namespace cgx::wire {
namespace {

// One `fields` function per message serves both directions: `io` is a Writer or a Reader.
struct Out {
  Writer writer;
  template <typename T>
  void number(const T& value) {
    writer.put(value);
  }
  void text(const std::string& value) { writer.put_string(value); }
  template <typename T, typename Each>
  void list(const std::vector<T>& values, size_t, Each each) {
    writer.put<uint32_t>(static_cast<uint32_t>(values.size()));
    for (const T& value : values) each(*this, value);
  }
};

struct In {
  Reader reader;
  template <typename T>
  void number(T& value) {
    value = reader.get<T>();
  }
  void text(std::string& value) { value = reader.get_string(); }
  template <typename T, typename Each>
  void list(std::vector<T>& values, size_t element_bytes_min, Each each) {
    values.resize(reader.get_count(element_bytes_min));
    for (T& value : values) each(*this, value);
  }
};

template <typename Io, typename M>
void fields(Io& io, M& m, const Hello*) {
  io.text(m.job);
  io.text(m.client);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const Welcome*) {
  io.number(m.instance);
  io.text(m.mesh_address);
  io.text(m.daemon);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const Reply*) {
  io.number(m.code);
  io.text(m.message);
  io.number(m.value0);
  io.number(m.value1);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const AddArena*) {
  io.number(m.arena);
  io.number(m.kind);
  io.number(m.way);
  io.number(m.device);
  io.number(m.bytes);
  io.number(m.offset);
  io.number(m.handle);
  io.number(m.pattern_at);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const DropArena*) {
  io.number(m.arena);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const Meet*) {
  io.number(m.comm);
  io.text(m.name);
  io.number(m.rank);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const CreateCommunicator*) {
  io.number(m.comm);
  io.text(m.name);
  io.number(m.rank);
  io.number(m.first_step);
  io.number(m.timeout_ms);
  io.number(m.meeting);
  io.number(m.job_key);
  io.number(m.arena);
  io.text(m.staged);
  io.list(m.members, 36, [](Io& each, auto& member) {
    each.number(member.instance);
    each.text(member.mesh_address);
    each.number(member.device);
  });
}
template <typename Io, typename M>
void fields(Io& io, M& m, const RegisterTensors*) {
  io.number(m.comm);
  io.number(m.first);
  io.list(m.tensors, 28, [](Io& each, auto& tensor) {
    each.text(tensor.name);
    each.number(tensor.dtype);
    each.number(tensor.op);
    each.number(tensor.kind);
    each.number(tensor.elements);
    each.list(tensor.shape, 8, [](Io& dim_io, auto& dim) { dim_io.number(dim); });
    each.number(tensor.home_arena);
    each.number(tensor.home_offset);
  });
}
template <typename Io, typename M>
void fields(Io& io, M& m, const Commit*) {
  io.number(m.comm);
  io.number(m.tensors);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const RedoStep*) {
  io.number(m.comm);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const AskReport*) {
  io.number(m.comm);
  io.number(m.first);
}
template <typename Io, typename M>
void fields(Io& io, M& m, const CloseCommunicator*) {
  io.number(m.comm);
}
template <typename Io, typename M>
void fields(Io&, M&, const Goodbye*) {}

constexpr SessionMessageType type_of(const Hello*) {
  return SessionMessageType::kHello;
}
constexpr SessionMessageType type_of(const Welcome*) {
  return SessionMessageType::kWelcome;
}
constexpr SessionMessageType type_of(const Reply*) {
  return SessionMessageType::kReply;
}
constexpr SessionMessageType type_of(const AddArena*) {
  return SessionMessageType::kAddArena;
}
constexpr SessionMessageType type_of(const DropArena*) {
  return SessionMessageType::kDropArena;
}
constexpr SessionMessageType type_of(const Meet*) {
  return SessionMessageType::kMeet;
}
constexpr SessionMessageType type_of(const CreateCommunicator*) {
  return SessionMessageType::kCreateCommunicator;
}
constexpr SessionMessageType type_of(const RegisterTensors*) {
  return SessionMessageType::kRegisterTensors;
}
constexpr SessionMessageType type_of(const Commit*) {
  return SessionMessageType::kCommit;
}
constexpr SessionMessageType type_of(const RedoStep*) {
  return SessionMessageType::kRedoStep;
}
constexpr SessionMessageType type_of(const AskReport*) {
  return SessionMessageType::kAskReport;
}
constexpr SessionMessageType type_of(const CloseCommunicator*) {
  return SessionMessageType::kCloseCommunicator;
}
constexpr SessionMessageType type_of(const Goodbye*) {
  return SessionMessageType::kGoodbye;
}

template <typename Message>
std::vector<std::byte> encode(const Message& message, uint32_t request) {
  Out body;
  fields(body, message, static_cast<const Message*>(nullptr));
  const std::vector<std::byte> bytes = body.writer.take();
  PacketHeader header{.type = static_cast<uint16_t>(type_of(static_cast<const Message*>(nullptr))),
                      .request = request,
                      .body_bytes = static_cast<uint32_t>(bytes.size())};
  Writer packet;
  packet.put(header);
  packet.append(bytes);
  return packet.take();
}

template <typename Message>
Result<Message> decode(std::span<const std::byte> body, const char* name) {
  In in{Reader(body)};
  Message message;
  fields(in, message, static_cast<const Message*>(nullptr));
  if (!in.reader.done()) {
    return protocol_error(std::string("session message ") + name + " of " +
                          std::to_string(body.size()) + " bytes does not decode exactly");
  }
  return message;
}

}  // namespace

Result<PacketHeader> parse_header(std::span<const std::byte> packet, Side reader) {
  PacketHeader header;
  if (packet.size() < sizeof(header)) {
    return protocol_error("session packet of " + std::to_string(packet.size()) +
                          " bytes is shorter than its header (16 bytes)");
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.magic != kSessionMagic) return protocol_error("session packet without the cgx magic");
  if (header.version != kSessionVersion) {
    const bool daemon = reader == Side::kDaemon;
    return Status(StatusCode::kVERSION_MISMATCH,
                  std::string(daemon ? "the client" : "the daemon") + " speaks session protocol " +
                      std::to_string(header.version) + ", this " + (daemon ? "daemon" : "library") +
                      " speaks " + std::to_string(kSessionVersion));
  }
  if (header.body_bytes != packet.size() - sizeof(header)) {
    return protocol_error("session packet of " + std::to_string(packet.size()) +
                          " bytes announces a body of " + std::to_string(header.body_bytes));
  }
  return header;
}

#define X(Message)                                                                          \
  template <>                                                                               \
  std::vector<std::byte> encode_packet<Message>(const Message& message, uint32_t request) { \
    return encode(message, request);                                                        \
  }                                                                                         \
  template <>                                                                               \
  Result<Message> decode_body<Message>(std::span<const std::byte> body) {                   \
    return decode<Message>(body, #Message);                                                 \
  }
CGX_SESSION_MESSAGES(X)
#undef X

std::string to_text(const DeviceId& device) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < device.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[std::to_integer<unsigned>(device[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(device[i]) & 15];
  }
  return text;
}

}  // namespace cgx::wire
