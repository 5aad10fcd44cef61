// The frame header: what travels in front of every message between daemons.
//
//   frame    := header payload
//   payload  := [call descriptor] [presence bitmap, padded to 64] ranges
//                                              (kData, see scheduler/exchange/layout.h)
//             | control message                (kControl, see scheduler/communicator/control.h)
//             | step call sent echo held awaits, and the local ranks that have not ended, submitted
//               or committed, [zeros]          (kHeartbeat)
//
// `awaits` is the machine that its sender waits for, 2^32 - 1 if it waits for none. A heartbeat's
// `sent` is its sender's clock; `echo` is the receiver's, from its last heartbeat,
// which came `held` ns before. An echo of 0: none has come yet. With zeros it is answered at once.
//
// The header is fixed-size and checksummed; nothing in it sizes anything: lengths are compared with
// what the plan says. Checksums are XXH3-64 (payload first, then the header with its own field 0).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/wire/status.h"

namespace cgx::wire {

constexpr uint32_t kFrameMagic = 0x46584743;  // "CGXF"
constexpr uint16_t kFrameVersion = 5;

enum class FrameType : uint8_t { kData = 1, kControl = 2, kHeartbeat = 3 };
enum class StepKind : uint8_t { kStep = 0, kCall = 1 };

struct FrameHeader {
  enum Flags : uint8_t {
    kBitmap = 1,       // payload starts with a presence bitmap; else every tensor is present
    kStepDropped = 2,  // the step before this one was DROPPED by this machine's ranks
    kDescriptor = 4,   // payload starts with the call's descriptor
  };
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint64_t communicator = 0;
  uint64_t epoch = 0;
  uint64_t plan_hash = 0;  // calls: hash of the call's descriptor
  uint64_t step = 0;       // step or call number
  uint32_t term = 0;
  uint32_t source = 0;  // machine index
  uint32_t group = 0;   // plan position
  uint32_t part = 0;    // of the group's layout
  uint32_t length = 0;  // payload bytes
  StepKind step_kind = StepKind::kStep;
  uint8_t round = 0;  // of the part's course in which it was sent, from 1 on
  uint16_t reserved = 0;
  uint32_t target = 0;             // machine index: a daemon has a machine for each site
  uint32_t progress = 0;           // heartbeats: rounds of work since the start
  uint64_t complete_step_end = 0;  // first step not complete and delivered at the source
  uint64_t complete_call_end = 0;  // likewise for calls
  uint64_t next_epoch = 0;         // the newest announced plan that the source knows of, 0 = none
  uint64_t switch_step = 0;        // the first step under next_epoch
  uint64_t started_step_end = 0;   // first step the source has started no operation of
  uint64_t payload_checksum = 0;
  uint64_t header_checksum = 0;
};
static_assert(sizeof(FrameHeader) == 128);

uint64_t checksum(std::span<const std::byte> bytes);
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed);

// XXH3-128 under a secret that two sides share: what strangers cannot make.
using ChecksumSecret = std::array<std::byte, 192>;
using Checksum128 = std::array<uint64_t, 2>;
Checksum128 keyed_checksum(std::span<const std::byte> bytes, const ChecksumSecret& secret);

// Who sees to it that a payload arrives as it was sent.
enum class PayloadCheck : uint8_t {
  kFrame,      // the frame's own checksum
  kTransport,  // the transport that carries it; the header's field is 0
};
// Fills length and both checksums.
void seal(FrameHeader& header, std::span<const std::byte> payload,
          PayloadCheck check = PayloadCheck::kFrame);
// Magic, version, length, checksums. The returned header is a copy.
Result<FrameHeader> open_frame(std::span<const std::byte> header,
                               std::span<const std::byte> payload,
                               PayloadCheck check = PayloadCheck::kFrame);

}  // namespace cgx::wire
