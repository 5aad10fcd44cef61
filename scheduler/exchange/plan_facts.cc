#include "scheduler/exchange/plan_facts.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "kernels/codec.h"
#include "scheduler/plan/losses.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {

SlabCounts slabs_for(const FrameNeeds& each, uint32_t operations, uint32_t machines) {
  if (machines == 1) return {};
  const uint32_t parts = scatter_parts(machines);
  const uint32_t few = 2 * (machines - 1) * parts + parts;  // of several operations with one part
  // Own parts that wait for peers' must leave room for those of an operation that starts late.
  const uint32_t forwarded = each.forwarded == 0 ? 0 : std::max(operations * each.forwarded, few);
  return {.received = operations * (2 * each.received + each.results) + forwarded,
          .own = operations * each.kept + std::max(operations * each.unheard, few)};
}

void JobNeeds::cover(const JobNeeds& other) {
  slices = std::max(slices, other.slices);
  decoded_bytes = std::max(decoded_bytes, other.decoded_bytes);
  decoded_slice_bytes = std::max(decoded_slice_bytes, other.decoded_slice_bytes);
  sparse_buckets = std::max(sparse_buckets, other.sparse_buckets);
  sparse_bytes = std::max(sparse_bytes, other.sparse_bytes);
}

JobNeeds job_needs(const Group& group, const GroupLayout& layout, uint32_t machines) {
  JobNeeds most;
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    JobNeeds needs;
    uint64_t staged = 0;
    for (const Slice& slice : layout.slices(layout.part(part))) {
      const Segment& segment = group.segments[slice.segment];
      ++needs.slices;
      if (segment.rack_spec) {
        const uint64_t each = align_range(slice.elements * sizeof(float));
        const uint64_t of_rack = (group.way.rack_machines - 1) * each;
        const bool lossy = segment.rack_spec->codec != 0;
        needs.decoded_bytes += lossy ? of_rack : 0;
        needs.decoded_slice_bytes = std::max(needs.decoded_slice_bytes, lossy ? of_rack : each);
      }
      if (kernels::find_codec(segment.spec.codec)->sparse) {
        needs.sparse_buckets += (slice.elements + segment.spec.bucket - 1) / segment.spec.bucket;
        staged += slice.range_bytes;
      }
    }
    needs.sparse_bytes = staged + (machines + 1) * needs.sparse_buckets * sizeof(uint64_t);
    most.cover(needs);
  }
  return most;
}

JobNeeds loss_needs(const std::vector<CodecSpec>& strengths, const GroupLayout& layout) {
  JobNeeds most;
  if (strengths.empty() || !kernels::find_codec(strengths[0].codec)->sparse) return most;
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    JobNeeds needs;
    for (const Slice& slice : layout.slices(layout.part(part))) {
      const LossPieces each = loss_pieces(strengths, slice.elements);
      uint64_t longest = 0;
      for (const CodecSpec& spec : strengths) {
        longest = std::max(longest, kernels::encoded_bytes(spec, DType::kF32, each.elements));
      }
      needs.sparse_buckets += each.count;
      needs.sparse_bytes += each.count * (longest + 2 * sizeof(uint64_t));
    }
    most.cover(needs);
  }
  return most;
}

Renumbering renumber(std::shared_ptr<const TensorTable> before, const TensorTable& table) {
  std::unordered_map<std::string_view, uint32_t> numbers;
  numbers.reserve(before->size());
  for (uint32_t tensor = 0; tensor < before->size(); ++tensor) {
    numbers.emplace((*before)[tensor].name, tensor);
  }
  Renumbering made{std::move(before), std::vector<uint32_t>(table.size(), Renumbering::kNone)};
  for (uint32_t tensor = 0; tensor < table.size(); ++tensor) {
    const auto found = numbers.find(table[tensor].name);
    if (found != numbers.end()) made.of[tensor] = found->second;
  }
  return made;
}

}  // namespace cgx::scheduler
