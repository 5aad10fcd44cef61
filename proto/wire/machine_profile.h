// What a machine of a job says of itself when plans are searched: what work takes there, and what
// steps took under the last plans. Times are nanoseconds; those of a plan that are not known are 0.
//
//   profile := version u8, operation segment frame f32, copy wire f32 (a byte), trip share f32,
//              codecs u32, (spec, floor and per byte of encoding, of decoding f32)*,
//              plans u32, (epoch u64, step last between arithmetic busy f32)*
//
// Counts are bounded, and each number is finite, not negative and at most an hour's. Whoever reads
// a profile decides nothing but plans by it. Thread rule: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/wire/status.h"
#include "proto/wire/types.h"

namespace cgx::wire {

struct MachineProfile {
  struct Curve {
    float floor_ns = 0, ns_per_byte = 0;
  };
  struct Codec {
    CodecSpec spec;
    Curve encode, decode;
  };
  struct Plan {  // a usual step under it
    uint64_t epoch = 0;
    float step_ns = 0;     // from its first gradient until it was complete
    float last_ns = 0;     // from its first gradient to its last
    float between_ns = 0;  // from the end of the step before to its first gradient
    float arithmetic_ns = 0, busy_ns = 0;
  };
  static constexpr size_t kCodecsMax = 128, kPlansMax = 16;
  static constexpr size_t kBytesMax = 8 << 10;  // of any profile that is encoded
  static constexpr float kMostNs = 3.6e12f;     // of any number: an hour

  float operation_ns = 0, segment_ns = 0, frame_ns = 0;
  float copy_ns_per_byte = 0, wire_ns_per_byte = 0;
  float trip_ns = 0;  // one way, to the machine that is farthest
  float share = 0;    // 0 to 1: of the daemon's processor time, what trainers lose
  std::vector<Codec> codecs;
  std::vector<Plan> plans;  // the newest last
};

// REQUIRES: no more codecs and plans than there may be.
std::vector<std::byte> encode_profile(const MachineProfile& profile);
// VERSION_MISMATCH: it is of another version. PROTOCOL_ERROR: it is no profile.
Result<MachineProfile> decode_profile(std::span<const std::byte> bytes);

}  // namespace cgx::wire
