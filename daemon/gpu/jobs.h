// What cgxd and its worker (cgxd-gpu) say to each other: jobs and answers in two rings, everything
// else in packets on a socket. Both are of one build, and the worker refuses another's.
//
//   job    := JobHead, strengths (CodecSpec) whose losses are measured, slice*; an end has no more
//             than the head
//   slice  := SliceHead, then its inputs, outputs (DevicePlace) and contributions (Staged)
//   answer := AnswerHead, then Measured* by slice where norms were asked for or sizes vary, then
//             LossSample* by slice where losses were, then text; or, of a job that is held, no more
//             than the head: which input of which slice it waits for
//
// Places are (arena, offset) and (block of staging, offset), never addresses: the worker knows
// where each lies with it, and checks that it lies within.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/gpu/byte_ring.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/types.h"
#include "scheduler/plan/losses.h"

namespace cgx::daemon::gpu {

constexpr uint32_t kWorkerForm = 8;          // of everything in this file
constexpr uint32_t kStreams = 4;             // of a worker; an operation's jobs run on one of them
constexpr uint64_t kScratchBytes = 8 << 20;  // of a stream, on the device
constexpr uint64_t kTableBytes = 16 << 20;   // of launches

// Of all slices of a job together, in which losses are measured; other slices are not.
constexpr uint64_t kLossPiecesMax = 2048, kLossValuesMax = 512 << 10;

enum class JobKind : uint8_t {
  kEncode,
  kDecode,
  kReduce,
  kCombine,
  kLocalReduce,
  kKeep,
  kHash,
  // No jobs: these are answered at once as cancelled, what the device has begun when it is done.
  kEnd,      // what has not begun of the operation
  kGiveWay,  // the operation's first job that waits for a trainer, and those behind that one
};

struct DevicePlace {
  uint32_t arena = 0;
  uint32_t word = 0;  // timeline word of that arena that is waited for; 0: none
  uint64_t offset = 0;
  uint32_t word_value = 0;
  uint32_t reserved = 0;
};
enum class StagedKind : uint64_t {
  kEncoded,   // with the slice's codec
  kOwnRanks,  // contributions: the inputs instead, exactly
  kInRack,    // contributions: with the codec of racks
};
struct Staged {  // encoded bytes
  uint32_t block = 0;
  uint32_t length = 0;
  uint64_t offset = 0;
  StagedKind kind = StagedKind::kEncoded;
};

struct JobHead {
  uint32_t bytes = 0;
  JobKind kind = JobKind::kEncode;
  uint8_t stream = 0;
  uint16_t reserved = 0;
  uint64_t ticket = 0;
  uint32_t slices = 0;
  uint32_t strengths = 0;
  uint64_t step = 0;  // names the draws of losses
  uint32_t operation = 0;
  uint32_t reserved_too = 0;
};
struct SliceHead {
  CodecSpec spec;
  CodecSpec rack_spec;    // of contributions that are kInRack
  uint64_t elements = 0;  // hash: bytes
  uint64_t draw_stream = 0, draw_bucket = 0;
  double scale = 1;
  uint64_t first_element = 0;  // of the tensor, and of its residual
  uint32_t residual = 0;       // number; 0: none
  float residual_scale = 1;
  Staged into;  // encode, reduce
  DType dtype = DType::kF32;
  uint8_t confirmed = 0;  // slot of the residual
  uint8_t writes = 0;     // the other one is written
  uint8_t norms = 0;
  uint16_t inputs = 0, outputs = 0;
  uint32_t contributions = 0;
  uint32_t loss_pieces = 0;  // scheduler::LossPieces; 0: losses are not measured
  uint32_t loss_elements = 0;
  uint8_t partial = 0;  // reduce: the sum is no result yet, so the type's limit does not hold
  uint8_t reserved[3] = {};
};

struct AnswerHead {
  uint32_t bytes = 0;
  uint16_t status = 0;
  uint16_t text_bytes = 0;
  uint64_t ticket = 0;
  uint64_t hash = 0;
  uint64_t nonfinite_buckets = 0, saturated = 0;
  uint32_t measured = 0;
  uint32_t losses = 0;
  uint32_t held = 0;  // 1: no answer yet
  uint32_t slice = 0, input = 0;
  uint32_t reserved = 0;
};
struct Measured {
  double intended_sq = 0, sent_sq = 0;  // where norms were asked for
  uint64_t encoded_bytes = 0;           // where a codec's size varies: how many were used
};

// The memory of the rings: made by cgxd, sealed.
struct ChannelHead {
  uint32_t worker_sleeping;  // 1: ring the doorbell after a job
  uint8_t pad0[60];
  uint32_t daemon_sleeping;  // 1: ring the notifier after an answer
  uint8_t pad1[60];
  uint32_t worker_loads;  // 1: kernels are being loaded, which a driver may have to compile before
  uint8_t pad2[60];
  uint32_t worker_beat;  // another one in each round of its loop
  uint8_t pad3[60];
  ByteRingCursors jobs, answers;
};
// What is answered of a slice is shorter than the slice.
static_assert(sizeof(Measured) + sizeof(scheduler::LossSample) <= sizeof(SliceHead));
constexpr uint64_t kJobRingBytes = 4 << 20, kAnswerRingBytes = kJobRingBytes;
constexpr uint64_t kJobRingOffset = 4096, kAnswerRingOffset = kJobRingOffset + kJobRingBytes;
constexpr uint64_t kChannelBytes = kAnswerRingOffset + kAnswerRingBytes;
static_assert(sizeof(ChannelHead) <= kJobRingOffset);

// Packets. Those with a request number are answered by an Answered of the same one.
enum class PacketKind : uint32_t {
  kHello = 1,   // fds: channel, doorbell, notifier
  kAnswered,    // worker -> cgxd
  kAddArena,    // fds: the page of words, and the memory where it travels as a descriptor
  kDropArena,   // nothing names it any more; with a request number: answered when it is closed
  kFreeWords,   // its process has died: nobody will write its words, so no job waits for them
  kAddStaging,  // fd: a block of staging memory; answered when it is pinned
  kDropStaging,
  kMakeResidual,  // zero, two slots
  kDropResidual,
  kReserveWork,  // of sparse codecs, for jobs of up to so many buckets
  kLoadKernels,  // of a codec
};
// Answered to kHello, bits: MPS serves; streams write no words to say what is done.
constexpr uint64_t kMpsServes = 1, kAsksEvents = 2;
struct WorkerPacket {
  PacketKind kind = PacketKind::kHello;
  uint32_t request = 0;
  uint32_t form = kWorkerForm;
  uint32_t number = 0;  // of the arena, block or residual; work memory: buckets; Hello: 1 where it
                        // sees its own GPU only
  uint64_t bytes = 0;  // of memory; residuals: elements; work memory: beside what buckets under way
                       // need; Answered to kAddArena: the pattern, to kHello: the bits
  uint32_t status = 0;  // Answered
  wire::ArenaWay way = wire::ArenaWay::kVmm;
  uint8_t reserved[3] = {};
  wire::DeviceId device{};
  uint64_t offset = 0;      // ipc: of the memory in its allocation
  uint64_t pattern_at = 0;  // in the arena
  wire::MemoryHandle handle{};
  CodecSpec spec{};     // kLoadKernels
  char text[456] = {};  // Answered: the status' message; to kHello, if well: the driver's version
};

}  // namespace cgx::daemon::gpu
