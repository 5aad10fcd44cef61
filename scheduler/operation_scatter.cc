// Operation, scatter: parts to their owners, who reduce and encode them once, and the results back.
#include <cstring>

#include "scheduler/operation.h"

namespace cgx::scheduler {

using wire::Phase;

Status Operation::receive_gather(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  const GroupLayout& layout = *setup_.layout;
  PeerState& peer = peers_[header.source];
  if (header.shard != header.source || header.chunk >= peer.gathered.size() ||
      header.chunk >= peer.next_chunk) {
    return protocol_error("gather frame for shard " + std::to_string(header.shard) + ", chunk " +
                          std::to_string(header.chunk) + " from machine " +
                          std::to_string(header.source) + " was not expected");
  }
  if (peer.gathered[header.chunk]) {
    host_.count(Counter::kframes_unexpected, 1);
    return {};
  }
  const Part& part = layout.part(header.shard, header.chunk);
  CGX_ASSIGN_OR_RETURN(Payload parsed, parse(header, payload, part, 0));
  CGX_RETURN_IF_ERROR(learn_union(parsed.presence));
  const uint64_t began_ns = begin_span(part);
  kernels::RangeStats stats;
  for (const Slice& slice : layout.slices(part)) {
    if (!parsed.presence.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    CGX_ASSIGN_OR_RETURN(const std::span<const std::byte> range,
                         take_range(planned(slice), dtype(slice), slice, parsed.ranges));
    auto job = job_into<kernels::DecodeJob>(segment, slice);
    job.encoded = range;
    CGX_RETURN_IF_ERROR(lane_.decode(job, stats));
  }
  record_span(EventKind::kdecode, began_ns, part, header.source);
  peer.gathered[header.chunk] = true;
  --peer.unanswered;
  --gathers_left_;
  return {};
}

// False: no slab is free.
Result<bool> Operation::reduce_chunk(uint32_t chunk, const Live& live) {
  const SlabId taken = pool_.take_for_own();
  if (taken == kNoSlab) return false;
  const Slab out(pool_, taken);
  CGX_ASSIGN_OR_RETURN(const Presence present, learn_union());
  const Part& own = setup_.layout->part(setup_.machine, chunk);
  const uint64_t began_ns = begin_span(own);
  CGX_ASSIGN_OR_RETURN(const uint32_t length, reduce_ranges(chunk, live, present, out.bytes()));
  record_span(EventKind::kreduce, began_ns, own);
  close_chunk(chunk);
  send_to_all(Phase::kGather, chunk, !present.all(), out.id(), length);
  return true;
}

// The own part comes from the local ranks, exactly. Returns the payload's length.
Result<uint32_t> Operation::reduce_ranges(uint32_t chunk, const Live& live, const Presence& present,
                                          std::span<std::byte> out) {
  const GroupLayout& layout = *setup_.layout;
  uint64_t written = 0;
  if (!present.all()) {
    written = layout.bitmap_bytes();
    present.write(out.first(written));
  }
  std::vector<std::span<const std::byte>> rest = ranges_of(chunk, live);
  for (const Slice& slice : layout.slices(layout.part(setup_.machine, chunk))) {
    if (!present.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    for (uint32_t k = 0; k < setup_.machines; ++k) {
      if (k != setup_.machine) CGX_RETURN_IF_ERROR(take_contribution(k, slice, rest[k]));
    }
    contributions_[setup_.machine] = {.kind = kernels::Contribution::Kind::kRaw,
                                      .raw = raw_view(segment, slice)};
    auto job = job_into<kernels::ReduceJob>(segment, slice);
    job.contributions = contributions_;
    job.key = draw_key(slice, Phase::kGather);
    job.encoded = out.subspan(written, slice.range_bytes);
    job.norms = setup_.norms && planned(slice).spec.codec != 0;
    kernels::RangeStats stats;
    CGX_ASSIGN_OR_RETURN(const uint64_t used, lane_.reduce(job, stats));
    note(slice, stats);
    written += pad_range(out.subspan(written), used);
  }
  return static_cast<uint32_t>(written);
}

bool Operation::send_scatter() {
  const uint32_t others = setup_.machines - 1;
  for (uint32_t i = 0; i < others; ++i) {
    const uint32_t hop = (next_peer_ + i) % others;
    const uint32_t machine = (setup_.machine + 1 + hop) % setup_.machines;
    const PeerState& peer = peers_[machine];
    if (peer.next_chunk == peer.gathered.size() ||
        peer.unanswered >= setup_.layout->inflight_parts())
      continue;
    next_peer_ = (hop + 1) % others;
    return send_part_of(machine);
  }
  return false;
}

bool Operation::send_part_of(uint32_t machine) {
  const SlabId slab = pool_.take_for_own();
  if (slab == kNoSlab) return false;
  PeerState& peer = peers_[machine];
  const uint32_t chunk = peer.next_chunk++;
  ++peer.unanswered;
  --sends_left_;
  const Encoded encoded =
      encode_part(setup_.layout->part(machine, chunk), chunk, pool_.bytes(slab));
  host_.send_part(*this, {.machine = machine,
                          .phase = Phase::kScatter,
                          .shard = machine,
                          .chunk = chunk,
                          .bitmap = !own_presence_.all(),
                          .slab = slab,
                          .length = encoded.end()});
  return true;
}

}  // namespace cgx::scheduler
