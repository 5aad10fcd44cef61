// Operation, its frames: what may come, what it must look like, and who has which tensors.
#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler/exchange/operation.h"

namespace cgx::scheduler {

Status Operation::receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                          uint64_t now_ns, Slab* owned) {
  CGX_ASSERT(header.source < setup_.machines && header.source != setup_.machine);
  heard_[header.source] = true;
  last_progress_ns_ = now_ns;
  if (state_ != State::kExchanging) return {};
  CGX_ASSIGN_OR_RETURN(const Expected what, expected(header));
  if (frame_at(header.part, what.frame).here) {
    port_.count(Counter::kframes_unexpected, 1);
    return {};
  }
  const bool in_rack = move_of({header.part, what.move}).in_rack;
  CGX_ASSIGN_OR_RETURN(const Payload parsed, parse(header, payload, in_rack));
  CGX_RETURN_IF_ERROR(take_frame(header, what, parsed, owned));
  return check_complete();
}

Status Operation::receive_result(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload, uint64_t now_ns) {
  if (ended_) return {};
  if (state_ == State::kExchanging) {
    CGX_ASSIGN_OR_RETURN(const Expected what, expected(header));
    const Move& receive = move_of({header.part, what.move});
    if (!receive.for_results && !receive.shared) return {};
  }
  return receive(header, payload, now_ns);
}

// The receives of the schedule say which frames there are.
Result<Operation::Expected> Operation::expected(const wire::FrameHeader& header) const {
  if (header.part < parts_.size()) {
    const Course& course = schedule().course(header.part);
    const uint16_t frame = course.frame_of(header.round, header.source);
    if (frame != Course::kNone) {
      const uint32_t receive = course.receive_of(frame);
      const uint32_t before = course.moves()[receive].after;
      if ((before & ~parts_[header.part].done) == 0) return Expected{frame, receive};
    }
  }
  return protocol_error("a frame of round " + std::to_string(header.round) + " for part " +
                        std::to_string(header.part) + " of group " + std::to_string(header.group) +
                        " from machine " + std::to_string(header.source) + " was not expected");
}

uint64_t Operation::prefix_bytes(uint32_t part, uint32_t round) const {
  return round == 1 && setup_.layout->begins_shard(part) ? setup_.descriptor.size() : 0;
}

// The payload must be exactly as long as the plan and the frame's own bitmap say.
Result<Operation::Payload> Operation::parse(const wire::FrameHeader& header,
                                            std::span<const std::byte> payload,
                                            bool in_rack) const {
  const GroupLayout& layout = *setup_.layout;
  const Part& part = layout.part(header.part);
  const auto wrong = [&](const std::string& why) {
    return protocol_error("frame of machine " + std::to_string(header.source) + ", group " +
                          std::to_string(header.group) + ", part " + std::to_string(header.part) +
                          ", round " + std::to_string(header.round) + " holds " +
                          std::to_string(payload.size()) + " bytes, " + why);
  };
  const auto wrong_size = [&](uint64_t expected) {
    return wrong("the plan says " + std::to_string(expected));
  };
  const uint64_t prefix = prefix_bytes(header.part, header.round);
  if (payload.size() < prefix) return wrong_size(prefix);
  const std::span<const std::byte> rest = payload.subspan(prefix);
  Payload parsed{Presence(layout.segments(), true), rest, rest};
  uint64_t expected = part.encoded(in_rack);
  if (header.flags & wire::FrameHeader::kBitmap) {
    if (parsed.ranges.size() < layout.bitmap_bytes()) return wrong_size(layout.bitmap_bytes());
    parsed.presence.read(parsed.ranges.first(layout.bitmap_bytes()));
    parsed.ranges = parsed.ranges.subspan(layout.bitmap_bytes());
    expected = 0;
    for (const Slice& slice : layout.slices(part)) {
      if (parsed.presence.test(slice.segment)) expected += slice.encoded(in_rack);
    }
  }
  if (part.variable) {
    const Status status = check_ranges(part, parsed, in_rack);
    if (!status.ok()) return wrong(status.message());
  } else if (parsed.ranges.size() != expected) {
    return wrong_size(expected);
  }
  return parsed;
}

// Ranges that end where they say must lie one behind the other, and nothing behind the last.
Status Operation::check_ranges(const Part& part, const Payload& parsed, bool in_rack) const {
  std::span<const std::byte> rest = parsed.ranges;
  for (const Slice& slice : setup_.layout->slices(part)) {
    if (!parsed.presence.test(slice.segment)) continue;
    const Status status =
        take_range(setup_.planned(slice), setup_.dtype(slice), slice, rest, in_rack).status();
    if (status.ok()) continue;
    return protocol_error("of tensor '" + (*setup_.table)[setup_.planned(slice).tensor].name +
                          "': " + status.message());
  }
  if (rest.empty()) return {};
  return protocol_error(std::to_string(rest.size()) + " of them behind the last tensor's");
}

Status Operation::take_frame(const wire::FrameHeader& header, const Expected& what,
                             const Payload& parsed, Slab* owned) {
  const Move& receive = move_of({header.part, what.move});
  CGX_RETURN_IF_ERROR(receive.decoded
                          ? learn_union(parsed.presence)
                          : learn_presence(header.round, header.source, parsed.presence));
  Held& frame = frame_at(header.part, what.frame);
  frame.here = true;
  frame.length = static_cast<uint32_t>(parsed.ranges.size());
  Live live{
      .frame = what.frame, .ranges = parsed.ranges, .payload = parsed.payload, .owned = owned};
  if (all_here(header.part, receive)) {
    CGX_RETURN_IF_ERROR(begin_if_last(header.part));
    PartState& state = parts_[header.part];
    state.begun |= 1u << what.move;
    state.done |= 1u << what.move;
    CGX_RETURN_IF_ERROR(follow(header.part, live));
  }
  if (live.used) return {};
  CGX_ASSIGN_OR_RETURN(const FrameBytes held,
                       hold(header.source, parsed.ranges, owned, frame.slab));
  frame.offset = held.offset;
  return {};
}

bool Operation::all_here(uint32_t part, const Move& receive) {
  for (uint32_t i = 0; i < receive.machines.size(); ++i) {
    if (!frame_at(part, receive.first_frame + i).here) return false;
  }
  return true;
}

// The own part is all that is missing: encoded now, the frame in hand needs no copy.
Status Operation::begin_if_last(uint32_t part) {
  const uint16_t flow = schedule().flow_of(part);
  if (flow == Schedule::kNoFlow || results_only_ || !to_keep_.empty()) return {};
  const Flow& planned = schedule().flows()[flow];
  const FlowState& state = flows_[flow];
  if (state.next != part || state.next - state.lowest >= planned.ahead) return {};
  return begin(flow).status();
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
  CGX_RETURN_IF_ERROR(copy(machine, ranges, held));
  bytes.slab = held.id();
  return bytes;
}

Status Operation::copy(uint32_t machine, std::span<const std::byte> bytes, Slab& into) {
  const SlabId slab = pool_.take_for_received();
  if (slab == kNoSlab || bytes.size() > pool_.slab_bytes()) {
    return protocol_error("machine " + std::to_string(machine) +
                          " sent more parts ahead than the plan allows");
  }
  into = Slab(pool_, slab);
  if (site_reads_ && !bytes.empty()) std::memcpy(into.bytes().data(), bytes.data(), bytes.size());
  port_.count(Counter::kheld_bytes, bytes.size());
  return {};
}

// The frame in hand is in a slab then, as if it had come in it.
Status Operation::copy_live(uint32_t machine, Live& live) {
  CGX_RETURN_IF_ERROR(copy(machine, live.payload, live.copy));
  const size_t front = live.payload.size() - live.ranges.size();
  live.owned = &live.copy;
  live.payload = live.copy.bytes().first(live.payload.size());
  live.ranges = live.payload.subspan(front);
  return {};
}

// The held parts of a machine are read under one presence, whatever came first.
Status Operation::learn_presence(uint8_t round, uint32_t machine, const Presence& presence) {
  Presence& known = heard_presence(round, machine);
  if (known == presence) return {};
  if (known == Presence()) {
    known = presence;
    return {};
  }
  return protocol_error("machine " + std::to_string(machine) +
                        " says differently in two frames which tensors of group " +
                        std::to_string(setup_.group_index) + " it has");
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

const Presence& Operation::presence_of(uint32_t part, const Source& source) {
  const std::span<const Move> moves = schedule().course(part).moves();
  switch (source.kind) {
    case Source::Kind::kOwnRanks:
      break;
    case Source::Kind::kFrame: {
      const Move& receive = moves[schedule().course(part).receive_of(source.index)];
      return heard_presence(receive.round, receive.machines[source.index - receive.first_frame]);
    }
    case Source::Kind::kBuffer:
      for (const Move& move : moves) {
        if (move.kind != MoveKind::kReduce || move.buffer != source.index) continue;
        return move.results ? union_ : partial_;
      }
      break;
  }
  return own_presence_;
}

// REQUIRES: the sources are here.
Result<const Presence*> Operation::presence_of_sum(const Move& move, uint32_t part) {
  Presence sum(setup_.layout->segments());
  for (const Source& source : move.sources) sum.merge(presence_of(part, source));
  if (move.kind == MoveKind::kReduce && !move.results) {
    if (partial_ == Presence()) partial_ = sum;  // later ones are equal: a machine's frames agree
    return &partial_;
  }
  CGX_RETURN_IF_ERROR(learn_union(sum));
  return &union_;
}

}  // namespace cgx::scheduler
