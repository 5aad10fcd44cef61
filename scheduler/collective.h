// Collectives as pure layouts: who owns which buckets of a group, cut into parts that fit a frame.
//
// Scatter-reduce-allgather: shard k (contiguous buckets of the group, balanced by encoded bytes)
// belongs to machine k. Everybody sends its contribution to shard k to machine k (scatter), which
// adds them in machine order, encodes the sum once and sends it to everybody (gather).
// Direct: everybody sends its whole contribution to everybody and adds in machine order itself; one
// trip, only for small raw operations. Shard k then is machine k's contribution.
//
//   data payload := [call descriptor, 64 bytes]   scatter chunk 0 of a call
//                   [presence bitmap, padded to 64]  when the frame has kBitmap
//                   range*                           one per present slice, each padded to 64
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

constexpr uint64_t kDirectBytesMax = 32 * 1024;

enum class Collective : uint8_t { kScatterGather, kDirect };

// Consecutive buckets of one segment.
struct Slice {
  uint32_t segment = 0;       // index in the group
  uint64_t first_bucket = 0;  // counted from the tensor's element 0
  uint64_t first_element = 0;
  uint64_t elements = 0;
  uint64_t range_bytes = 0;    // exactly what the codec writes
  uint64_t encoded_bytes = 0;  // padded
};

// What one frame carries: the slices of one chunk of one shard.
struct Part {
  uint32_t first_slice = 0;
  uint32_t slice_count = 0;
  uint64_t raw_bytes = 0;
  uint64_t encoded_bytes = 0;  // with every tensor present
};

struct PartLimits {
  uint64_t raw_bytes = 512 * 1024;
  uint64_t encoded_bytes = 192 * 1024;
};

class GroupLayout {
 public:
  GroupLayout() = default;
  // Small raw groups take one trip (direct), everything else two.
  static GroupLayout choose(const Group& group, const TensorTable& table, uint32_t machines,
                            const PartLimits& limits);
  static GroupLayout scatter_gather(const Group& group, const TensorTable& table, uint32_t machines,
                                    const PartLimits& limits);
  static GroupLayout direct(const Group& group, const TensorTable& table, uint32_t machines);

  Collective collective() const { return collective_; }
  uint32_t shards() const { return static_cast<uint32_t>(first_part_.size()) - 1; }
  // At least 1: an empty shard still sends headers.
  uint32_t chunks(uint32_t shard) const { return first_part_[shard + 1] - first_part_[shard]; }
  const Part& part(uint32_t shard, uint32_t chunk) const {
    return parts_[first_part_[shard] + chunk];
  }
  std::span<const Slice> slices(const Part& part) const {
    return std::span(slices_).subspan(part.first_slice, part.slice_count);
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

  Collective collective_ = Collective::kScatterGather;
  uint32_t segments_ = 0;
  uint64_t raw_bytes_ = 0, encoded_bytes_ = 0, part_bytes_max_ = 0;
  std::vector<uint32_t> first_part_{0};  // per shard, one more at the end
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

 private:
  void trim();
  uint32_t segments_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace cgx::scheduler
