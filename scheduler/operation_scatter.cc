// Operation, scatter: parts to their owners, who reduce and encode them once, and the results back.
#include "scheduler/operation.h"

namespace cgx::scheduler {

using wire::Phase;

Status Operation::receive_gather(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  const GroupLayout& layout = *setup_.layout;
  PeerState& peer = peers_[header.source];
  const bool known = header.shard == header.source && header.chunk < peer.parts.size();
  if (!known || peer.parts[header.chunk] < PartState::kSent) {
    return protocol_error("gather frame for shard " + std::to_string(header.shard) + ", chunk " +
                          std::to_string(header.chunk) + " from machine " +
                          std::to_string(header.source) + " was not expected");
  }
  if (peer.parts[header.chunk] >= PartState::kDecoding) {
    host_.count(Counter::kframes_unexpected, 1);
    return {};
  }
  const Part& part = layout.part(header.shard, header.chunk);
  CGX_ASSIGN_OR_RETURN(const Payload parsed, parse(header, payload, part, 0));
  CGX_RETURN_IF_ERROR(learn_union(parsed.presence));
  Asked asked{.shard = header.shard, .chunk = header.chunk};
  FrameBytes frame{.length = static_cast<uint32_t>(parsed.ranges.size()),
                   .live = parsed.ranges.data()};
  if (!site_consumes_) {
    CGX_ASSIGN_OR_RETURN(frame, hold(header.source, parsed.ranges, nullptr, asked.slab));
  }
  peer.parts[header.chunk] = PartState::kDecoding;
  return ask(std::move(asked), {.kind = SiteJobKind::kDecode, .presence = &union_, .frame = frame});
}

void Operation::decoded(const Asked& asked) {
  PeerState& peer = peers_[asked.shard];
  peer.parts[asked.chunk] = PartState::kDone;
  --peer.unanswered;
  --gathers_left_;
}

// Presence in front, where some tensor is absent on all machines. False: no slab is free.
Result<bool> Operation::reduce_chunk(uint32_t chunk, const Live& live) {
  const SlabId taken = pool_.take_for_own();
  if (taken == kNoSlab) return false;
  Asked asked{.shard = setup_.machine, .chunk = chunk, .slab = Slab(pool_, taken)};
  CGX_RETURN_IF_ERROR(learn_union().status());
  if (!union_.all()) {
    asked.offset = static_cast<uint32_t>(setup_.layout->bitmap_bytes());
    union_.write(asked.slab.bytes().first(asked.offset));
  }
  SiteJob job{.kind = SiteJobKind::kReduce,
              .presence = &union_,
              .from = contributions(chunk, live),
              .into = taken,
              .offset = asked.offset};
  CGX_RETURN_IF_ERROR(ask(std::move(asked), job));
  return true;
}

void Operation::reduced(const Asked& asked, const SiteAnswer& answer) {
  if (results_only_) return;  // it may not be sent any more, so it is no result
  close_chunk(asked.chunk);
  send_to_all(Phase::kGather, asked.chunk, !union_.all(), asked.slab.id(),
              asked.offset + answer.bytes);
}

Result<bool> Operation::send_scatter() {
  const uint32_t others = setup_.machines - 1;
  for (uint32_t i = 0; i < others; ++i) {
    const uint32_t hop = (next_peer_ + i) % others;
    const uint32_t machine = (setup_.machine + 1 + hop) % setup_.machines;
    const PeerState& peer = peers_[machine];
    if (peer.next_chunk == peer.parts.size() || peer.unanswered >= setup_.layout->inflight_parts())
      continue;
    next_peer_ = (hop + 1) % others;
    return send_part_of(machine);
  }
  return false;
}

Result<bool> Operation::send_part_of(uint32_t machine) {
  const SlabId slab = pool_.take_for_own();
  if (slab == kNoSlab) return false;
  PeerState& peer = peers_[machine];
  const uint32_t chunk = peer.next_chunk++;
  peer.parts[chunk] = PartState::kEncoding;
  ++peer.unanswered;
  --sends_left_;
  CGX_RETURN_IF_ERROR(ask_encode(machine, chunk, Slab(pool_, slab)));
  return true;
}

}  // namespace cgx::scheduler
