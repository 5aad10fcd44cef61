#include "scheduler/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cgx::scheduler {

using wire::Phase;

Operation::Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationHost& host,
                     uint64_t now_ns)
    : setup_(std::move(setup)),
      work_(site.begin(setup_)),
      site_consumes_(site.consumes_inside()),
      pool_(pool),
      host_(host),
      started_ns_(now_ns),
      last_progress_ns_(now_ns),
      own_presence_(setup_.layout->segments()),
      union_(setup_.layout->segments()),
      peers_(setup_.machines) {
  const GroupLayout& layout = *setup_.layout;
  Event begun = event(EventKind::kbegun);
  begun.a = layout.segments();
  host_.record(begun);
  for (uint32_t i = 0; i < setup_.segments.size(); ++i) {
    if (!setup_.segments[i].inputs.empty()) own_presence_.set(i);
  }
  const uint32_t own_chunks = layout.chunks(setup_.machine);
  own_.resize(own_chunks);
  arrivals_.resize(size_t{own_chunks} * setup_.machines);
  contributions_.resize(setup_.machines);
  own_left_ = own_chunks;
  if (setup_.machines == 1) {
    union_ = own_presence_;
    union_known_ = true;
    return;
  }
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    peers_[k].presence = Presence(layout.segments());
    if (k == setup_.machine || allgather()) continue;
    peers_[k].parts.resize(layout.chunks(k));
    gathers_left_ += layout.chunks(k);
    sends_left_ += layout.chunks(k);
  }
  peers_[setup_.machine].presence = own_presence_;
  if (allgather()) sends_left_ = own_chunks;
  find_residuals_to_keep();
}

Event Operation::event(EventKind kind) const {
  const bool of_call = setup_.kind == wire::StepKind::kCall;
  return {.step = static_cast<uint32_t>(setup_.step),
          .kind = kind,
          .group = of_call ? Event::kCall : Event::group_number(setup_.group_index)};
}

// Reading the clock takes as long as such a part's arithmetic.
uint64_t Operation::begin_span(const Part& part) const {
  constexpr uint64_t kTimedBytes = 4096;
  return part.raw_bytes < kTimedBytes ? 0 : host_.fine_ns();
}

void Operation::record_span(EventKind kind, uint64_t began_ns, const Part& part, uint32_t machine) {
  Event span = event(kind);
  span.time_ns = began_ns;
  span.peer = static_cast<uint16_t>(machine);
  span.a = static_cast<uint32_t>(part.raw_bytes);
  if (began_ns != 0) span.b = host_.fine_ns() - began_ns;
  host_.record(span);
}

bool Operation::waits_for(uint32_t machine) const {
  for (uint32_t chunk = 0; chunk < own_.size(); ++chunk) {
    if (!arrivals_[size_t{chunk} * setup_.machines + machine].here) return true;
  }
  const std::vector<PartState>& parts = peers_[machine].parts;
  return std::any_of(parts.begin(), parts.end(),
                     [](PartState part) { return part < PartState::kDecoding; });
}

Result<bool> Operation::advance(uint64_t now_ns) {
  if (state_ != State::kExchanging) return false;
  bool worked = false;
  if (setup_.machines == 1) {
    CGX_ASSIGN_OR_RETURN(worked, reduce_locally());
  } else if (results_only_) {
    if (!results_ready()) return false;
    CGX_ASSIGN_OR_RETURN(worked, finish_ready());
  } else if (!to_keep_.empty()) {
    CGX_ASSIGN_OR_RETURN(worked, keep_residuals());
  } else {
    CGX_ASSIGN_OR_RETURN(worked, finish_ready());
    if (!worked && sends_left_ > 0) {
      CGX_ASSIGN_OR_RETURN(worked, allgather() ? send_gather() : send_scatter());
    }
  }
  if (worked) last_progress_ns_ = now_ns;
  CGX_RETURN_IF_ERROR(check_complete());
  return worked;
}

Status Operation::receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                          uint64_t now_ns, Slab* owned) {
  CGX_ASSERT(header.source < setup_.machines && header.source != setup_.machine);
  peers_[header.source].heard = true;
  last_progress_ns_ = now_ns;
  if (state_ != State::kExchanging) return {};
  const Status status = header.phase == Phase::kScatter
                            ? receive_contribution(header, payload, owned)
                            : receive_gather(header, payload);
  CGX_RETURN_IF_ERROR(status);
  return check_complete();
}

Status Operation::receive_result(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload, uint64_t now_ns) {
  if (header.phase == Phase::kScatter && !allgather()) return {};
  return receive(header, payload, now_ns);
}

// With nothing else left to do, what others will compare is hashed: the ranks have not heard of the
// result yet, so it is still what was decoded.
Status Operation::check_complete() {
  const auto done = [this] {
    return own_left_ == 0 && gathers_left_ == 0 && sends_left_ == 0 && asked_.empty();
  };
  if (!done()) return {};
  const std::optional<HashWish>& wish = setup_.hash;
  if (wish && !std::exchange(hash_asked_, true) && present_anywhere(wish->segment)) {
    CGX_RETURN_IF_ERROR(ask({}, {.kind = SiteJobKind::kHash,
                                 .segment = wish->segment,
                                 .first = wish->first_byte,
                                 .count = wish->bytes}));
  }
  if (done()) state_ = State::kComplete;
  return {};
}

// --- Receiving
// -------------------------------------------------------------------------------------

uint64_t Operation::scatter_prefix(uint32_t chunk) const {
  return chunk == 0 ? setup_.descriptor.size() : 0;
}

// The payload must be exactly as long as the plan and the frame's own bitmap say.
Result<Operation::Payload> Operation::parse(const wire::FrameHeader& header,
                                            std::span<const std::byte> payload, const Part& part,
                                            uint64_t prefix) const {
  const GroupLayout& layout = *setup_.layout;
  const auto wrong = [&](const std::string& why) {
    return protocol_error("frame of machine " + std::to_string(header.source) + ", group " +
                          std::to_string(header.group) + ", shard " + std::to_string(header.shard) +
                          ", chunk " + std::to_string(header.chunk) + " holds " +
                          std::to_string(payload.size()) + " bytes, " + why);
  };
  const auto wrong_size = [&](uint64_t expected) {
    return wrong("the plan says " + std::to_string(expected));
  };
  if (payload.size() < prefix) return wrong_size(prefix);
  Payload parsed{Presence(layout.segments(), true), payload.subspan(prefix)};
  uint64_t expected = part.encoded_bytes;
  if (header.flags & wire::FrameHeader::kBitmap) {
    if (parsed.ranges.size() < layout.bitmap_bytes()) return wrong_size(layout.bitmap_bytes());
    parsed.presence.read(parsed.ranges.first(layout.bitmap_bytes()));
    parsed.ranges = parsed.ranges.subspan(layout.bitmap_bytes());
    expected = 0;
    for (const Slice& slice : layout.slices(part)) {
      if (parsed.presence.test(slice.segment)) expected += slice.encoded_bytes;
    }
  }
  if (part.variable) {
    const Status status = check_ranges(part, parsed);
    if (!status.ok()) return wrong(status.message());
  } else if (parsed.ranges.size() != expected) {
    return wrong_size(expected);
  }
  return parsed;
}

// Ranges that end where they say must lie one behind the other, and nothing behind the last.
Status Operation::check_ranges(const Part& part, const Payload& parsed) const {
  std::span<const std::byte> rest = parsed.ranges;
  for (const Slice& slice : setup_.layout->slices(part)) {
    if (!parsed.presence.test(slice.segment)) continue;
    const Status status =
        take_range(setup_.planned(slice), setup_.dtype(slice), slice, rest).status();
    if (status.ok()) continue;
    return protocol_error("of tensor '" + (*setup_.table)[setup_.planned(slice).tensor].name +
                          "': " + status.message());
  }
  if (rest.empty()) return {};
  return protocol_error(std::to_string(rest.size()) + " of them behind the last tensor's");
}

// Scatter: a part of the own shard. Allgather: a part of a machine's whole contribution.
Status Operation::receive_contribution(const wire::FrameHeader& header,
                                       std::span<const std::byte> payload, Slab* owned) {
  const uint32_t shard = allgather() ? header.source : setup_.machine;
  if (header.shard != shard || header.chunk >= own_.size()) {
    return protocol_error("scatter frame for shard " + std::to_string(header.shard) + ", chunk " +
                          std::to_string(header.chunk) + " reached machine " +
                          std::to_string(setup_.machine));
  }
  Arrival& arrived = arrival(header.chunk, header.source);
  if (arrived.here) {
    host_.count(Counter::kframes_unexpected, 1);
    return {};
  }
  const Part& part = setup_.layout->part(shard, header.chunk);
  CGX_ASSIGN_OR_RETURN(const Payload parsed,
                       parse(header, payload, part, scatter_prefix(header.chunk)));
  CGX_RETURN_IF_ERROR(learn_presence(header.source, parsed.presence));
  arrived.here = true;
  arrived.length = static_cast<uint32_t>(parsed.ranges.size());
  OwnChunk& chunk = own_[header.chunk];
  // The own part is the only other one that is missing: encode it now, and this frame needs no
  // copy.
  const uint32_t needed = allgather() ? setup_.machines : setup_.machines - 1;
  const bool last_but_own = header.chunk == next_own_ && chunk.arrived + 2 == needed;
  if (allgather() && last_but_own && !results_only_ && to_keep_.empty()) {
    CGX_RETURN_IF_ERROR(send_gather().status());
  }
  if (++chunk.arrived < needed) {
    return hold(header.chunk, header.source, parsed.ranges, owned);
  }
  if (to_keep_.empty() && site_consumes_) {
    CGX_ASSIGN_OR_RETURN(const bool done,
                         finish_chunk(header.chunk, Live{header.source, parsed.ranges}));
    if (done) return {};
  }
  ready_.push_back(header.chunk);
  return hold(header.chunk, header.source, parsed.ranges, owned);
}

Status Operation::hold(uint32_t chunk, uint32_t machine, std::span<const std::byte> ranges,
                       Slab* owned) {
  Arrival& arrived = arrival(chunk, machine);
  CGX_ASSIGN_OR_RETURN(const FrameBytes held, hold(machine, ranges, owned, arrived.held));
  arrived.offset = held.offset;
  return {};
}

Result<FrameBytes> Operation::hold(uint32_t machine, std::span<const std::byte> ranges, Slab* owned,
                                   Slab& held) {
  FrameBytes bytes{.length = static_cast<uint32_t>(ranges.size())};
  if (ranges.empty()) return bytes;
  if (owned != nullptr) {
    bytes.offset = static_cast<uint32_t>(ranges.data() - owned->bytes().data());
    held = std::move(*owned);
    bytes.slab = held.id();
    return bytes;
  }
  const SlabId slab = pool_.take_for_received();
  if (slab == kNoSlab || ranges.size() > pool_.slab_bytes()) {
    return protocol_error("machine " + std::to_string(machine) +
                          " sent more parts ahead than the plan allows");
  }
  held = Slab(pool_, slab);
  bytes.slab = slab;
  std::memcpy(held.bytes().data(), ranges.data(), ranges.size());
  host_.count(Counter::kheld_bytes, ranges.size());
  return bytes;
}

// The held parts of a machine are read under one presence, whatever came first.
Status Operation::learn_presence(uint32_t machine, const Presence& presence) {
  PeerState& peer = peers_[machine];
  if (peer.contributed && !(peer.presence == presence)) {
    return protocol_error("machine " + std::to_string(machine) +
                          " says differently in two frames which tensors of group " +
                          std::to_string(setup_.group_index) + " it has");
  }
  peer.presence = presence;
  peer.contributed = true;
  return {};
}

Status Operation::learn_union(const Presence& presence) {
  if (!union_known_) {
    union_ = presence;
    union_known_ = true;
    return {};
  }
  for (uint32_t i = 0; i < setup_.layout->segments(); ++i) {
    if (union_.test(i) == presence.test(i)) continue;
    return protocol_error("machines disagree whether tensor '" +
                          (*setup_.table)[setup_.group->segments[i].tensor].name +
                          "' is present in step " + std::to_string(setup_.step));
  }
  return {};
}

// REQUIRES: every machine has contributed.
Result<Presence> Operation::learn_union() {
  Presence present = own_presence_;
  for (const PeerState& peer : peers_) present.merge(peer.presence);
  CGX_RETURN_IF_ERROR(learn_union(present));
  return present;
}

// --- Finishing chunks
// ------------------------------------------------------------------------------

Result<bool> Operation::finish_ready() {
  if (ready_.empty()) return false;
  CGX_ASSIGN_OR_RETURN(const bool done, finish_chunk(ready_.front(), Live{}));
  if (done) ready_.erase(ready_.begin());
  return done;
}

// Every machine's part is there: held, or in hand. False: no slab is free.
Result<bool> Operation::finish_chunk(uint32_t chunk, const Live& live) {
  return allgather() ? combine_chunk(chunk, live) : reduce_chunk(chunk, live);
}

void Operation::close_chunk(uint32_t chunk) {
  own_[chunk].done = true;
  --own_left_;
  while (lowest_ < own_.size() && own_[lowest_].done) ++lowest_;
  for (uint32_t k = 0; k < setup_.machines; ++k) arrival(chunk, k).held.reset();
}

// By machine, what it contributes to a chunk. In scatter the own part comes from the local ranks.
std::span<const SiteContribution> Operation::contributions(uint32_t chunk, const Live& live) {
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    SiteContribution& from = contributions_[k];
    from = {};
    if (!allgather() && k == setup_.machine) continue;
    const Arrival& arrived = arrival(chunk, k);
    from.presence = &peers_[k].presence;
    from.frame = {.offset = arrived.offset, .length = arrived.length};
    if (k == live.machine) {
      from.frame.live = live.payload.data();
    } else if (arrived.held) {
      from.frame.slab = arrived.held.id();
    }
  }
  return contributions_;
}

Result<bool> Operation::reduce_locally() {
  if (next_own_ >= own_.size()) return false;
  const uint32_t chunk = next_own_++;
  CGX_RETURN_IF_ERROR(
      ask({.chunk = chunk}, {.kind = SiteJobKind::kLocalReduce, .presence = &own_presence_}));
  return true;
}

// --- Sending

void Operation::send_to_all(Phase phase, uint32_t chunk, bool bitmap, SlabId slab,
                            uint32_t length) {
  for (uint32_t hop = 1; hop < setup_.machines; ++hop) {
    pool_.add_reference(slab);
    host_.send_part(*this, {.machine = (setup_.machine + hop) % setup_.machines,
                            .phase = phase,
                            .shard = setup_.machine,
                            .chunk = chunk,
                            .bitmap = bitmap,
                            .slab = slab,
                            .length = length});
  }
}

}  // namespace cgx::scheduler
