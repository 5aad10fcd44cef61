// What travels together and how: the tensor table every rank agrees on, and the plan made from it.
//
// Both are plain values with one canonical encoding; hashes are taken over that encoding, so equal
// hashes mean equal tables and plans on all machines.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/status.h"
#include "proto/wire/types.h"
#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

struct TensorDesc {
  std::string name;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  wire::TensorKind kind = wire::TensorKind::kDense;
  uint64_t elements = 0;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorDesc&, const TensorDesc&) = default;

  uint64_t bytes() const { return elements * dtype_bytes(dtype); }
  uint64_t name_hash() const;
};
using TensorTable = std::vector<TensorDesc>;

uint64_t table_hash(const TensorTable& table);
std::vector<std::byte> encode_table(const TensorTable& table);
Result<TensorTable> decode_table(std::span<const std::byte> bytes);
// Names the first difference ("tensor 3: rank 0 has conv.weight fp32[64,3], rank 2 ..."), empty if
// none.
std::string first_difference(const TensorTable& ours, const std::string& our_name,
                             const TensorTable& theirs, const std::string& their_name);

// Consecutive buckets of a tensor that travel together. All segments of a tensor have its codecs.
struct Segment {
  static constexpr uint64_t kToTheEnd = UINT64_MAX;

  uint32_t tensor = 0;
  CodecSpec spec;
  uint64_t first_bucket = 0, buckets = kToTheEnd;  // of spec.bucket
  // What a machine sends to be added within its rack, where that has another codec. Its buckets
  // divide the others: parts are cut at borders of both.
  std::optional<CodecSpec> rack_spec = {};
  friend bool operator==(const Segment&, const Segment&) = default;

  uint64_t first_element() const { return first_bucket * spec.bucket; }
  const CodecSpec& codec(bool in_rack) const { return in_rack && rack_spec ? *rack_spec : spec; }
};
uint64_t bucket_count(const Segment& segment, const TensorTable& table);
uint64_t element_count(const Segment& segment, const TensorTable& table);
uint64_t segment_bytes(const Segment& segment, const TensorTable& table);  // raw

struct Group {
  std::vector<Segment> segments;
  Way way;
  friend bool operator==(const Group&, const Group&) = default;
};

// A plan on trial: it alternates with the one it would take the place of, in blocks of steps, and
// then gives way to it. Which of the two a step has follows from the step's number alone.
struct Trial {
  uint64_t against = 0;  // hash of the plan in force; 0: no trial
  uint32_t block = 0;    // steps of a block
  uint32_t pairs = 0;    // of blocks, one under each plan

  bool on() const { return against != 0; }
  uint64_t steps() const { return uint64_t{2} * pairs * block; }
  // `step` counts from the plan's first. Which block of a pair comes first takes turns, so that
  // a load that grows or falls favours neither.
  bool tries(uint64_t step) const {
    const uint64_t number = step / block;
    return step < steps() && (number % 2 == 0) == (number / 2 % 2 == 0);
  }
  friend bool operator==(const Trial&, const Trial&) = default;
};
constexpr uint32_t kTrialBlockMax = 64, kTrialPairsMax = 64;

// What a plan says beyond its policy; a daemon that reads another form refuses it by name.
constexpr uint32_t kPlanForm = 5;

struct Plan {
  uint64_t epoch = 0;
  uint32_t form = kPlanForm;
  uint32_t machines = 1;
  uint64_t codec_formats = kernels::codec_formats();  // of the daemon that made it
  uint64_t table_hash = 0;
  uint64_t policy_version = 0;
  uint32_t window = 4;
  uint32_t weight = 1;
  uint32_t replica_check_steps = 0;
  float feedback_decay = 1.0f;
  uint32_t stats_steps = 0;
  PartLimits limits;
  Trial trial;
  std::vector<Group> groups;

  uint64_t hash() const;
};

// Calls act(tensor, description) for each tensor that has residuals under the plan.
template <class Act>
void for_each_feedback(const Plan& plan, const TensorTable& table, Act act) {
  for (const Group& group : plan.groups) {
    for (const Segment& segment : group.segments) {
      const bool first = segment.first_bucket == 0;
      if (first && segment.spec.feedback()) act(segment.tensor, table[segment.tensor]);
    }
  }
}

std::vector<std::byte> encode_plan(const Plan& plan);
Result<Plan> decode_plan(std::span<const std::byte> bytes);
Result<uint64_t> epoch_of(std::span<const std::byte> encoded_plan);
// Made by a daemon with the same formats, every bucket of every tensor in exactly one segment, the
// same codecs in all of a tensor and valid for its dtype, ways that this daemon knows, limits kept.
Status check_plan(const Plan& plan, const TensorTable& table);

}  // namespace cgx::scheduler
