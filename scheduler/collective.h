// Collectives as pure layouts: who owns which buckets of a group, cut into parts that fit a frame.
//
// Scatter (scatter-reduce-allgather): shard k (contiguous buckets of the group, balanced by encoded
// bytes) belongs to machine k. Everybody sends its contribution to shard k to machine k (scatter),
// which adds them in machine order, encodes the sum once and sends it to everybody (gather).
// Allgather: everybody encodes its whole contribution once and sends it to everybody, who adds all
// of them, its own bytes included, in machine order. One trip and one loss instead of two, and no
// second encoding; machine k's "shard" is its whole contribution, cut like everybody's.
//
//   data payload := [call descriptor, 64 bytes]   scatter chunk 0 of a call
//                   [presence bitmap, padded to 64]  when the frame has kBitmap
//                   range*                           one per present slice, each padded to 64
//
// A range is as long as its codec says for that many elements; where the codec's size varies it
// ends where its own headers say (kernels::encoded_length), and the sizes below are bounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan.h"

namespace cgx::scheduler {

constexpr uint64_t kRangeAlignment = 64;
constexpr uint64_t align_range(uint64_t bytes) {
  return (bytes + kRangeAlignment - 1) & ~(kRangeAlignment - 1);
}

enum class Collective : uint8_t { kScatter, kAllgather };
const char* collective_name(Collective collective);

// Up to here a group without loss takes one trip: time on the wire matters less than a second trip.
constexpr uint64_t kOneTripBytesMax = 32 * 1024;
// Up to so many machines codecs that gather well do so: each machine sends (M-1) times its encoded
// bytes instead of 2(M-1)/M times, which for their few bits costs less than the second trip, and
// the values are encoded once instead of twice.
constexpr uint32_t kGatherMachinesMax = 4;
Collective choose_collective(CollectiveWish wish, const Group& group, const TensorTable& table,
                             uint32_t machines);

// Consecutive buckets of one segment.
struct Slice {
  uint32_t segment = 0;       // index in the group
  uint64_t first_bucket = 0;  // counted from the tensor's element 0
  uint64_t first_element = 0;
  uint64_t elements = 0;
  uint64_t range_bytes = 0;    // what the codec writes: exactly, or at most if variable
  uint64_t encoded_bytes = 0;  // padded
  bool variable = false;
};

// The first of the ranges in `rest`, which then starts at the next one. CORRUPT if the slice's
// range does not end within them.
Result<std::span<const std::byte>> take_range(const Segment& segment, DType dtype,
                                              const Slice& slice, std::span<const std::byte>& rest);

// Fills the rest of a range of `used` bytes at the front of `out` with zeros; returns its padded
// size.
uint64_t pad_range(std::span<std::byte> out, uint64_t used);

// What one frame carries: the slices of one chunk of one shard.
struct Part {
  uint32_t first_slice = 0;
  uint32_t slice_count = 0;
  uint64_t raw_bytes = 0;
  uint64_t encoded_bytes = 0;  // with every tensor present, at most
  bool variable = false;       // some slice is
};

struct PartLimits {
  uint64_t raw_bytes = 512 * 1024;
  uint64_t encoded_bytes = 192 * 1024;
};

// Parts in flight: about the same bytes whatever the number of machines. Scatter: per peer without
// an answer.
constexpr uint32_t scatter_parts(uint32_t machines) {
  return machines <= 2 ? 8 : machines <= 8 ? 8 / (machines - 1) + 1 : 1;
}
// Allgather: own parts encoded beyond the lowest chunk not combined. Combining needs everybody's
// part, so a machine sends at most one window beyond what a peer has encoded, which, among more
// than two machines, may itself be one window beyond what that peer has combined.
constexpr uint32_t gather_parts(uint32_t machines) {
  return machines <= 2 ? scatter_parts(machines) : (scatter_parts(machines) + 1) / 2;
}

class GroupLayout {
 public:
  GroupLayout() = default;
  static GroupLayout choose(CollectiveWish wish, const Group& group, const TensorTable& table,
                            uint32_t machines, const PartLimits& limits);
  static GroupLayout scatter(const Group& group, const TensorTable& table, uint32_t machines,
                             const PartLimits& limits);
  static GroupLayout allgather(const Group& group, const TensorTable& table, uint32_t machines,
                               const PartLimits& limits);

  Collective collective() const { return collective_; }
  uint32_t shards() const { return shards_; }  // as many as machines
  // At least 1: an empty shard still sends headers.
  uint32_t chunks(uint32_t shard) const {
    return first_part_[row(shard) + 1] - first_part_[row(shard)];
  }
  const Part& part(uint32_t shard, uint32_t chunk) const {
    return parts_[first_part_[row(shard)] + chunk];
  }
  std::span<const Slice> slices(const Part& part) const {
    return std::span(slices_).subspan(part.first_slice, part.slice_count);
  }
  uint32_t inflight_parts() const {
    return collective_ == Collective::kAllgather ? gather_parts(shards_) : scatter_parts(shards_);
  }
  uint32_t segments() const { return segments_; }
  uint64_t bitmap_bytes() const { return align_range((segments_ + 7) / 8); }
  uint64_t raw_bytes() const { return raw_bytes_; }
  uint64_t encoded_bytes() const { return encoded_bytes_; }
  uint64_t part_bytes_max() const { return part_bytes_max_; }  // payload, bitmap included

 private:
  void add_shard(const Group& group, const TensorTable& table, uint64_t begin, uint64_t end,
                 const PartLimits& limits);
  void close();
  // Contributions that are cut alike are kept once.
  uint32_t row(uint32_t shard) const { return collective_ == Collective::kAllgather ? 0 : shard; }

  Collective collective_ = Collective::kScatter;
  uint32_t segments_ = 0, shards_ = 0;
  uint64_t raw_bytes_ = 0, encoded_bytes_ = 0, part_bytes_max_ = 0;
  std::vector<uint32_t> first_part_{0};  // per row, one more at the end
  std::vector<Part> parts_;
  std::vector<Slice> slices_;
};

// Which tensors of a group a machine has: one bit per segment.
class Presence {
 public:
  Presence() = default;
  explicit Presence(uint32_t segments, bool all = false)
      : segments_(segments), words_((segments + 63) / 64, all ? ~uint64_t{0} : 0) {
    trim();
  }
  void set(uint32_t segment) { words_[segment / 64] |= uint64_t{1} << (segment % 64); }
  bool test(uint32_t segment) const { return words_[segment / 64] >> (segment % 64) & 1; }
  bool all() const { return count() == segments_; }
  bool none() const { return count() == 0; }
  uint32_t count() const;
  void merge(const Presence& other);
  void write(std::span<std::byte> bitmap) const;
  void read(std::span<const std::byte> bitmap);
  friend bool operator==(const Presence&, const Presence&) = default;

 private:
  void trim();
  uint32_t segments_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace cgx::scheduler
