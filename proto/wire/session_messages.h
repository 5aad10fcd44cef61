// The messages on a session's Unix socket (SOCK_SEQPACKET: one message per packet), setup only; the
// data path is the rings.
//
//   packet   := header body
//   header   := magic u32 "CGXS", version u16, type u16, request u32, body bytes u32
//   request  : chosen by the client, comes back in the reply; 0 for messages without a reply
//
//   client                                     daemon
//   Hello (pidfd of itself)           ->
//                                     <-       Welcome (session memory, doorbell, eventfd)
//   AddArena (sealed memfd)           ->       of a kind: on the host, or on a device named by UUID
//                                     <-       Reply
//   DropArena                         ->       one on a device, which nothing names any more
//                                     <-       Reply when the device's worker has closed it
//   Meet, again and again             ->
//                                     <-       Reply at once: OK, ALREADY_EXISTS or RANK_LOST
//   CreateCommunicator                ->
//                                     <-       Reply when every rank has joined on every machine
//   RegisterTensors*, Commit          ->
//                                     <-       Reply when the plan is prepared everywhere; value0 =
//                                              epoch, value1 = first step
//   RedoStep                          ->
//                                     <-       Reply when the new term started; value0 = attempt,
//                                              value1 = the step to redo
//   AskReport                         ->
//                                     <-       Reply; message = a page of lines for people,
//                                              value0 = the first tensor of the next page, or 0
//   CloseCommunicator                 ->
//                                     <-       Reply when nothing of it is read or written in this
//                                              session's arenas any more
//   Goodbye                           ->
//
// A body that does not decode exactly is a PROTOCOL_ERROR and closes the session. Another version's
// packet is refused by name: VERSION_MISMATCH says who speaks which.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::wire {

constexpr uint32_t kSessionMagic = 0x53584743;  // "CGXS"
constexpr uint16_t kSessionVersion = 4;
constexpr size_t kSessionPacketBytesMax = 96 * 1024;  // below the default socket buffer
constexpr size_t kNameBytesMax = 512;
constexpr uint32_t kArenasMax = 64, kNoArena = UINT32_MAX;
constexpr uint32_t kShapeDimsMax = 8;

enum class SessionMessageType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kReply = 3,
  kAddArena = 4,
  kCreateCommunicator = 5,
  kRegisterTensors = 6,
  kCommit = 7,
  kRedoStep = 8,
  kCloseCommunicator = 9,
  kGoodbye = 10,
  kMeet = 11,
  kAskReport = 12,
  kDropArena = 13,
};

using InstanceId = std::array<uint64_t, 2>;  // random per daemon start
using JobKey = std::array<std::byte, 32>;

struct Hello {  // fd 0: pidfd of the client
  std::string job;
  std::string client;  // free text for logs: "python3 train.py"
};

struct Welcome {  // fd 0: session memory, fd 1: doorbell eventfd, fd 2: completion eventfd
  InstanceId instance{};
  std::string mesh_address;  // "10.0.0.3:7701"; empty: this daemon serves one machine only
  std::string daemon;        // version text
};

struct Reply {
  StatusCode code = StatusCode::kOK;
  std::string message;
  uint64_t value0 = 0, value1 = 0;
};

enum class ArenaKind : uint8_t { kHost = 0, kDevice = 1 };
using DeviceId = std::array<std::byte, 16>;   // its UUID
std::string to_text(const DeviceId& device);  // as nvidia-smi has it, without "GPU-"
// How memory travels: as a memfd; as a descriptor of the GPU's memory (VMM); as a handle (CUDA
// IPC).
enum class ArenaWay : uint8_t { kMemfd = 0, kVmm = 1, kIpc = 2 };
using MemoryHandle = std::array<std::byte, 64>;

// On the host, fd 0: memfd sealed SHRINK|GROW, fallocated, mapped; the daemon seals the rest. On a
// device, fd 0: memfd of a page of timeline words, sealed against shrinking; fd 1: VMM's
// descriptor. The reply's value0 is what 8 bytes of the arena, from `pattern_at` on, are on the
// device now.
struct AddArena {
  uint32_t arena = 0;
  ArenaKind kind = ArenaKind::kHost;
  ArenaWay way = ArenaWay::kMemfd;
  DeviceId device{};  // zero on the host
  uint64_t bytes = 0;
  uint64_t offset = 0;    // by handle: where in its allocation
  MemoryHandle handle{};  // by handle
  uint64_t pattern_at = 0;
};
// Its number may then be given to another arena on the same device.
struct DropArena {
  uint32_t arena = 0;
};
constexpr uint32_t kWordsMax = 64, kWordBytes = 64;  // timeline words, a cache line each; 0 is none

struct Member {  // of one rank, in rank order
  InstanceId instance{};
  std::string mesh_address;
  DeviceId device{};  // where its tensors lie; zero: on the host
};

struct Meet {  // while the ranks of a communicator meet, before its members are known
  uint32_t comm = 0;
  std::string name;
  uint32_t rank = 0;
};

struct CreateCommunicator {
  uint32_t comm = 0;  // the session's handle, chosen by the client
  std::string name;
  uint32_t rank = 0;
  uint64_t first_step = 0;
  uint64_t timeout_ms = 0;  // 0: the daemon's own
  uint32_t meeting = 0;     // random; the same on all ranks that met
  JobKey job_key{};
  // An arena of the session beside which all of this rank's tensors lie; kNoArena: on the host.
  uint32_t arena = kNoArena;
  std::string staged;  // why not, where the rank had named a GPU; for people
  std::vector<Member> members;
};

enum class TensorKind : uint8_t { kDense = 0 };

struct TensorDescription {
  std::string name;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  TensorKind kind = TensorKind::kDense;
  uint64_t elements = 0;
  std::vector<uint64_t> shape;
  uint8_t home_arena = 0;  // where an absent rank receives the result
  uint64_t home_offset = 0;
};

struct RegisterTensors {
  uint32_t comm = 0;
  uint32_t first = 0;  // index of the first one in the table: consecutive over the batches
  std::vector<TensorDescription> tensors;
};

struct Commit {
  uint32_t comm = 0;
  uint32_t tensors = 0;  // table size, all registrations included
};

struct RedoStep {
  uint32_t comm = 0;
};

struct AskReport {  // what travels how: see daemon/data/session_report.h
  uint32_t comm = 0;
  uint32_t first = 0;  // tensor of the page
};

struct CloseCommunicator {
  uint32_t comm = 0;
};

struct Goodbye {};

struct PacketHeader {
  uint32_t magic = kSessionMagic;
  uint16_t version = kSessionVersion;
  uint16_t type = 0;
  uint32_t request = 0;
  uint32_t body_bytes = 0;
};
static_assert(sizeof(PacketHeader) == 16);

// Who reads a packet.
enum class Side : uint8_t { kClient, kDaemon };
// Checks magic, version, size; VERSION_MISMATCH names both sides and their versions.
Result<PacketHeader> parse_header(std::span<const std::byte> packet, Side reader);

// One pair per message type; decode takes the body (packet without header).
template <typename Message>
std::vector<std::byte> encode_packet(const Message& message, uint32_t request);
template <typename Message>
Result<Message> decode_body(std::span<const std::byte> body);

// clang-format off
#define CGX_SESSION_MESSAGES(X) \
  X(Hello) X(Welcome) X(Reply) X(AddArena) X(DropArena) X(Meet) X(CreateCommunicator) \
  X(RegisterTensors) X(Commit) X(RedoStep) X(AskReport) X(CloseCommunicator) X(Goodbye)
// clang-format on
#define X(Message)                                                                         \
  template <>                                                                              \
  std::vector<std::byte> encode_packet<Message>(const Message& message, uint32_t request); \
  template <>                                                                              \
  Result<Message> decode_body<Message>(std::span<const std::byte> body);
CGX_SESSION_MESSAGES(X)
#undef X

}  // namespace cgx::wire
