// Operation, allgather: the own contribution, encoded once, to everybody; everybody's, the own one
// included, into the local results.
#include "scheduler/operation.h"

namespace cgx::scheduler {

// Encodes the next own chunk, keeps it and sends it to all. False: the window is full, or no slab
// is free.
bool Operation::send_gather() {
  if (next_own_ == own_.size() || next_own_ - lowest_ >= setup_.layout->inflight_parts())
    return false;
  const SlabId slab = pool_.take_for_own();
  if (slab == kNoSlab) return false;
  const uint32_t chunk = next_own_++;
  --sends_left_;
  const Encoded encoded =
      encode_part(setup_.layout->part(setup_.machine, chunk), chunk, pool_.bytes(slab));
  Arrival& own = arrival(chunk, setup_.machine);
  own.here = true;
  own.held = Slab(pool_, slab);
  own.offset = encoded.offset;
  own.length = encoded.length;
  if (++own_[chunk].arrived == setup_.machines) ready_.push_back(chunk);
  send_to_all(wire::Phase::kScatter, chunk, !own_presence_.all(), slab, encoded.end());
  return true;
}

// REQUIRES: every machine's part is there.
Status Operation::combine_chunk(uint32_t chunk, const Live& live) {
  const GroupLayout& layout = *setup_.layout;
  const Part& own = layout.part(setup_.machine, chunk);
  const uint64_t began_ns = begin_span(own);
  CGX_ASSIGN_OR_RETURN(const Presence present, learn_union());
  std::vector<std::span<const std::byte>> rest = ranges_of(chunk, live);
  for (const Slice& slice : layout.slices(own)) {
    if (!present.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    for (uint32_t k = 0; k < setup_.machines; ++k) {
      CGX_RETURN_IF_ERROR(take_contribution(k, slice, rest[k]));
    }
    auto job = job_into<kernels::CombineJob>(segment, slice);
    job.contributions = contributions_;
    kernels::RangeStats stats;
    CGX_RETURN_IF_ERROR(lane_.combine(job, stats));
    note(slice, stats);
  }
  record_span(EventKind::kcombine, began_ns, own);
  close_chunk(chunk);
  return {};
}

}  // namespace cgx::scheduler
