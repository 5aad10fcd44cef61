#include "scheduler/exchange/layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/codec.h"

namespace cgx::scheduler {
namespace {

uint64_t bucket_bytes(const Segment& segment, const TensorTable& table, bool in_rack) {
  return kernels::encoded_bytes(segment.codec(in_rack), table[segment.tensor].dtype,
                                segment.spec.bucket);
}

// What a full bucket of the segment weighs when shards are balanced.
uint64_t bucket_cost(const Segment& segment, const TensorTable& table) {
  return bucket_bytes(segment, table, /*in_rack=*/false);
}

uint64_t left(uint64_t limit, uint64_t used) {
  return used < limit ? limit - used : 0;
}

// The group's buckets laid end to end, addressed by cost: finds the bucket at a cost, rounding up.
class CostLine {
 public:
  CostLine(const Group& group, const TensorTable& table) : group_(group), table_(table) {
    for (const Segment& segment : group.segments) {
      total_ += bucket_count(segment, table) * bucket_cost(segment, table);
    }
  }
  uint64_t total() const { return total_; }
  // Linear bucket number (over all segments) of the first bucket that starts at or after `cost`.
  uint64_t bucket_at(uint64_t cost) const {
    uint64_t before = 0;
    for (const Segment& segment : group_.segments) {
      const uint64_t buckets = bucket_count(segment, table_);
      const uint64_t each = bucket_cost(segment, table_);
      if (cost <= buckets * each) return before + (cost + each - 1) / each;
      cost -= buckets * each;
      before += buckets;
    }
    return before;
  }

 private:
  const Group& group_;
  const TensorTable& table_;
  uint64_t total_ = 0;
};

}  // namespace

Result<std::span<const std::byte>> take_range(const Segment& segment, DType dtype,
                                              const Slice& slice, std::span<const std::byte>& rest,
                                              bool in_rack) {
  const CodecSpec& spec = segment.codec(in_rack);
  const uint64_t most = slice.range(in_rack);
  uint64_t bytes = most;
  if (slice.variable) {
    CGX_ASSIGN_OR_RETURN(bytes, kernels::encoded_length(spec, dtype, slice.elements, rest));
  }
  if (bytes > most || align_range(bytes) > rest.size()) {
    return Status(StatusCode::kCORRUPT, "a range of " + std::to_string(bytes) + " bytes where " +
                                            kernels::to_string(spec) + " writes " +
                                            std::to_string(most) +
                                            (slice.variable ? " at most" : "") + " and " +
                                            std::to_string(rest.size()) + " are left");
  }
  const std::span<const std::byte> range = rest.first(bytes);
  rest = rest.subspan(align_range(bytes));
  return range;
}

uint64_t pad_range(std::span<std::byte> out, uint64_t used) {
  const uint64_t padded = align_range(used);
  std::memset(out.data() + used, 0, padded - used);
  return padded;
}

GroupLayout GroupLayout::create(const Group& group, const TensorTable& table, uint32_t shards,
                                const PartLimits& limits) {
  GroupLayout layout;
  layout.segments_ = static_cast<uint32_t>(group.segments.size());
  const CostLine line(group, table);
  uint64_t begin = 0;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const bool last = shard + 1 == shards;
    // 128-bit product: totals times shard counts may pass 2^64 for absurd tables.
    const auto cost =
        static_cast<uint64_t>(static_cast<unsigned __int128>(line.total()) * (shard + 1) / shards);
    const uint64_t end = last ? UINT64_MAX : std::max(begin, line.bucket_at(cost));
    layout.add_shard(group, table, begin, end, limits);
    begin = end;
  }
  layout.close();
  return layout;
}

// Appends the parts of linear buckets [begin, end), at least one.
void GroupLayout::add_shard(const Group& group, const TensorTable& table, uint64_t begin,
                            uint64_t end, const PartLimits& limits) {
  Part part{.first_slice = static_cast<uint32_t>(slices_.size())};
  const auto finish_part = [&] {
    parts_.push_back(part);
    part = Part{.first_slice = static_cast<uint32_t>(slices_.size())};
  };
  uint64_t linear = 0;
  for (uint32_t s = 0; s < group.segments.size(); ++s) {
    const Segment& segment = group.segments[s];
    const TensorDesc& tensor = table[segment.tensor];
    const uint64_t buckets = bucket_count(segment, table);
    uint64_t bucket = std::max(begin, linear) - linear;
    const uint64_t bucket_end = end <= linear ? 0 : std::min(end - linear, buckets);
    linear += buckets;
    const uint64_t raw_bucket = segment.spec.bucket * dtype_bytes(tensor.dtype);
    const uint64_t encoded_bucket = bucket_cost(segment, table);
    const uint64_t rack_bucket = bucket_bytes(segment, table, /*in_rack=*/true);
    const bool variable = kernels::find_codec(segment.spec.codec)->variable_size;
    while (bucket < bucket_end) {
      const uint64_t room =
          std::min({left(limits.raw_bytes, part.raw_bytes) / raw_bucket,
                    left(limits.encoded_bytes, part.encoded_bytes) / encoded_bucket,
                    left(limits.encoded_bytes, part.rack_encoded_bytes) / rack_bucket});
      if (room == 0 && part.slice_count > 0) {
        finish_part();
        continue;
      }
      const uint64_t take = std::min(bucket_end - bucket, std::max<uint64_t>(room, 1));
      const uint64_t first_bucket = segment.first_bucket + bucket;
      const uint64_t first_element = first_bucket * segment.spec.bucket;
      const uint64_t elements =
          std::min(take * segment.spec.bucket, tensor.elements - first_element);
      const uint64_t range = kernels::encoded_bytes(segment.spec, tensor.dtype, elements);
      const uint64_t encoded = align_range(range);
      const uint64_t in_rack =
          kernels::encoded_bytes(segment.codec(/*in_rack=*/true), tensor.dtype, elements);
      slices_.push_back({s, first_bucket, first_element, elements, range, encoded, variable,
                         in_rack, align_range(in_rack)});
      ++part.slice_count;
      part.raw_bytes += elements * dtype_bytes(tensor.dtype);
      part.encoded_bytes += encoded;
      part.rack_encoded_bytes += slices_.back().rack_encoded_bytes;
      part.variable |= variable;
      bucket += take;
    }
  }
  if (part.slice_count > 0 || parts_.size() == first_part_.back()) finish_part();
  first_part_.push_back(static_cast<uint32_t>(parts_.size()));
}

void GroupLayout::close() {
  for (const Part& part : parts_) {
    raw_bytes_ += part.raw_bytes;
    encoded_bytes_ += part.encoded_bytes;
    rack_encoded_bytes_ += part.rack_encoded_bytes;
    part_bytes_max_ = std::max({part_bytes_max_, part.encoded_bytes, part.rack_encoded_bytes});
  }
  part_bytes_max_ += bitmap_bytes() + kRangeAlignment;
}

uint32_t Presence::count() const {
  auto total = static_cast<uint32_t>(std::popcount(first_));
  for (uint64_t word : rest_) total += static_cast<uint32_t>(std::popcount(word));
  return total;
}

void Presence::merge(const Presence& other) {
  first_ |= other.first_;
  for (size_t i = 0; i < rest_.size(); ++i) rest_[i] |= other.rest_[i];
}

void Presence::write(std::span<std::byte> bitmap) const {
  std::memset(bitmap.data(), 0, bitmap.size());
  const size_t bytes = (segments_ + 7) / 8, head = std::min(bytes, sizeof first_);
  std::memcpy(bitmap.data(), &first_, head);
  if (bytes > head) std::memcpy(bitmap.data() + head, rest_.data(), bytes - head);
}

void Presence::read(std::span<const std::byte> bitmap) {
  const size_t bytes = (segments_ + 7) / 8, head = std::min(bytes, sizeof first_);
  std::memcpy(&first_, bitmap.data(), head);
  if (bytes > head) std::memcpy(rest_.data(), bitmap.data() + head, bytes - head);
  trim();
}

void Presence::trim() {
  if (segments_ == 0) {
    first_ = 0;
  } else if (segments_ % 64 != 0) {
    word(segments_ / 64) &= (uint64_t{1} << (segments_ % 64)) - 1;
  }
}

}  // namespace cgx::scheduler
