// A group's values, cut into shards and parts that fit a frame. Pure, and the same on all machines:
// shards are balanced by encoded bytes, and cut at bucket borders. What happens to a part is its
// course's business (scheduler/exchange/schedule.h).
//
//   data payload := [call descriptor, 64 bytes]      when the frame has kDescriptor
//                   [presence bitmap, padded to 64]  when the frame has kBitmap
//                   range*                           one per present slice, each padded to 64
//
// A range is as long as its codec says for that many elements; where the codec's size varies it
// ends where its own headers say (kernels::encoded_length), and the sizes below are bounds. Frames
// with what is added within a rack may have another codec (Segment::rack_spec), so everything has
// two sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

constexpr uint64_t kRangeAlignment = 64;
constexpr uint64_t align_range(uint64_t bytes) {
  return (bytes + kRangeAlignment - 1) & ~(kRangeAlignment - 1);
}

// Consecutive buckets of one segment.
struct Slice {
  uint32_t segment = 0;       // index in the group
  uint64_t first_bucket = 0;  // counted from the tensor's element 0
  uint64_t first_element = 0;
  uint64_t elements = 0;
  uint64_t range_bytes = 0;    // what the codec writes: exactly, or at most if variable
  uint64_t encoded_bytes = 0;  // padded
  bool variable = false;
  uint64_t rack_range_bytes = 0, rack_encoded_bytes = 0;

  uint64_t range(bool in_rack) const { return in_rack ? rack_range_bytes : range_bytes; }
  uint64_t encoded(bool in_rack) const { return in_rack ? rack_encoded_bytes : encoded_bytes; }
};

// The first of the ranges in `rest`, which then starts at the next one. CORRUPT if the slice's
// range does not end within them.
Result<std::span<const std::byte>> take_range(const Segment& segment, DType dtype,
                                              const Slice& slice, std::span<const std::byte>& rest,
                                              bool in_rack = false);

// Fills the rest of a range of `used` bytes at the front of `out` with zeros; returns its padded
// size.
uint64_t pad_range(std::span<std::byte> out, uint64_t used);

// What one frame carries.
struct Part {
  uint32_t first_slice = 0;
  uint32_t slice_count = 0;
  uint64_t raw_bytes = 0;
  uint64_t encoded_bytes = 0;  // with every tensor present, at most
  bool variable = false;       // some slice is
  uint64_t rack_encoded_bytes = 0;

  uint64_t encoded(bool in_rack) const { return in_rack ? rack_encoded_bytes : encoded_bytes; }
};

// Parts that follow each other.
struct PartRange {
  uint32_t first = 0, count = 0;

  uint32_t end() const { return first + count; }
};

class GroupLayout {
 public:
  GroupLayout() = default;
  static GroupLayout create(const Group& group, const TensorTable& table, uint32_t shards,
                            const PartLimits& limits);

  uint32_t shards() const { return static_cast<uint32_t>(first_part_.size()) - 1; }
  // At least one part: an empty shard still sends headers.
  PartRange shard(uint32_t index) const {
    return {first_part_[index], first_part_[index + 1] - first_part_[index]};
  }
  uint32_t parts() const { return static_cast<uint32_t>(parts_.size()); }
  const Part& part(uint32_t index) const { return parts_[index]; }
  bool begins_shard(uint32_t part) const {
    return std::binary_search(first_part_.begin(), first_part_.end(), part);
  }
  std::span<const Slice> slices(const Part& part) const {
    return std::span(slices_).subspan(part.first_slice, part.slice_count);
  }
  uint32_t segments() const { return segments_; }
  uint64_t bitmap_bytes() const { return align_range((segments_ + 7) / 8); }
  uint64_t raw_bytes() const { return raw_bytes_; }
  uint64_t encoded_bytes() const { return encoded_bytes_; }
  uint64_t rack_encoded_bytes() const { return rack_encoded_bytes_; }
  uint64_t part_bytes_max() const { return part_bytes_max_; }  // payload, bitmap included

 private:
  void add_shard(const Group& group, const TensorTable& table, uint64_t begin, uint64_t end,
                 const PartLimits& limits);
  void close();

  uint32_t segments_ = 0;
  uint64_t raw_bytes_ = 0, encoded_bytes_ = 0, rack_encoded_bytes_ = 0, part_bytes_max_ = 0;
  std::vector<uint32_t> first_part_{0};  // per shard, one more at the end
  std::vector<Part> parts_;
  std::vector<Slice> slices_;
};

// Which tensors of a group a machine has: one bit per segment.
class Presence {
 public:
  Presence() = default;
  explicit Presence(uint32_t segments, bool all = false)
      : segments_(segments), first_(all ? ~uint64_t{0} : 0) {
    if (segments > 64) rest_.resize((segments - 1) / 64, first_);
    trim();
  }
  void set(uint32_t segment) { word(segment / 64) |= uint64_t{1} << (segment % 64); }
  bool test(uint32_t segment) const {
    const uint64_t word = segment < 64 ? first_ : rest_[segment / 64 - 1];
    return word >> (segment % 64) & 1;
  }
  bool all() const { return count() == segments_; }
  bool none() const { return count() == 0; }
  uint32_t count() const;
  void merge(const Presence& other);
  void write(std::span<std::byte> bitmap) const;
  void read(std::span<const std::byte> bitmap);
  friend bool operator==(const Presence&, const Presence&) = default;

 private:
  void trim();
  uint64_t& word(uint32_t index) { return index == 0 ? first_ : rest_[index - 1]; }
  uint32_t segments_ = 0;
  uint64_t first_ = 0;          // most groups have so few: their presences allocate nothing
  std::vector<uint64_t> rest_;  // from the 65th on
};

}  // namespace cgx::scheduler
