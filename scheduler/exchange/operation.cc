#include "scheduler/exchange/operation.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace cgx::scheduler {

namespace {

template <typename T>
std::vector<T> as_new(std::vector<T> memory, size_t size) {
  memory.clear();
  memory.resize(size);
  return memory;
}

std::unique_ptr<SiteOperation> begin_at(Site& site, const OperationSetup& setup,
                                        std::unique_ptr<SiteOperation> used) {
  if (used == nullptr) return site.begin(setup);
  used->begin_again(setup);
  return used;
}

}  // namespace

Operation::Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationPort& port,
                     uint64_t now_ns)
    : Operation(std::move(setup), site, pool, port, now_ns, Memory()) {}

Operation::Operation(OperationSetup setup, Site& site, BufferPool& pool, OperationPort& port,
                     uint64_t now_ns, Memory memory)
    : setup_(std::move(setup)),
      work_(begin_at(site, setup_, std::move(memory.work))),
      site_consumes_(site.consumes_inside()),
      site_reads_(site.reads_frames()),
      pool_(pool),
      port_(port),
      started_ns_(now_ns),
      last_progress_ns_(now_ns),
      own_presence_(setup_.layout->segments()),
      union_(setup_.layout->segments()),
      heard_(as_new(std::move(memory.heard), setup_.machines)),
      presences_(
          as_new(std::move(memory.presences), size_t{schedule().rounds()} * setup_.machines)),
      parts_(as_new(std::move(memory.parts), schedule().parts())),
      flows_(as_new(std::move(memory.flows), schedule().flows().size())),
      frames_(as_new(std::move(memory.frames), schedule().frames())),
      buffers_(as_new(std::move(memory.buffers), schedule().buffers())),
      ready_(std::move(memory.ready)),
      asked_(std::move(memory.asked)),
      parts_left_(schedule().parts()),
      to_keep_(std::move(memory.to_keep)),
      contributions_(as_new(std::move(memory.contributions), schedule().sources_max())) {
  Event begun = event(EventKind::kbegun);
  begun.a = setup_.layout->segments();
  port_.record(begun);
  for (uint32_t i = 0; i < setup_.segments.size(); ++i) {
    if (!setup_.segments[i].inputs.empty()) own_presence_.set(i);
  }
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    const PartRange parts = schedule().flows()[i].parts;
    flows_[i] = {parts.first, parts.first};
    to_begin_ += parts.count;
  }
  if (setup_.machines > 1) {
    find_residuals_to_keep();
  } else {
    union_ = own_presence_;
    union_known_ = true;
  }
}

void Operation::retire() {
  CGX_ASSERT(state_ == State::kComplete && asked_.empty());
  setup_.keeps_alive.reset();
  setup_.strengths = nullptr;
  if (!work_->reusable()) work_.reset();
  frames_.clear();  // their slabs go back
  buffers_.clear();
  ready_.clear();
  to_keep_.clear();
}

std::unique_ptr<Operation> Operation::begin_in(std::unique_ptr<Operation> retired,
                                               OperationSetup setup, Site& site, BufferPool& pool,
                                               OperationPort& port, uint64_t now_ns) {
  if (retired == nullptr) {
    return std::make_unique<Operation>(std::move(setup), site, pool, port, now_ns);
  }
  Operation& old = *retired;
  Memory memory{.work = std::move(old.work_),
                .heard = std::move(old.heard_),
                .presences = std::move(old.presences_),
                .parts = std::move(old.parts_),
                .flows = std::move(old.flows_),
                .frames = std::move(old.frames_),
                .buffers = std::move(old.buffers_),
                .ready = std::move(old.ready_),
                .asked = std::move(old.asked_),
                .to_keep = std::move(old.to_keep_),
                .contributions = std::move(old.contributions_)};
  Operation* const place = retired.release();
  std::destroy_at(place);
  return std::unique_ptr<Operation>(
      std::construct_at(place, std::move(setup), site, pool, port, now_ns, std::move(memory)));
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
  return part.raw_bytes < kTimedBytes ? 0 : port_.fine_ns();
}

void Operation::record_span(EventKind kind, uint64_t began_ns, const Part& part, uint32_t machine) {
  Event span = event(kind);
  span.time_ns = began_ns;
  span.peer = static_cast<uint16_t>(machine);
  span.a = static_cast<uint32_t>(part.raw_bytes);
  if (began_ns != 0) span.b = port_.fine_ns() - began_ns;
  port_.record(span);
}

uint32_t Operation::waits_for(uint32_t machine) const {
  uint32_t earliest = 0;
  for (const Schedule::Leg& leg : schedule().legs()) {
    uint32_t part = leg.parts.first;
    while (part < leg.parts.end() && parts_[part].closed) ++part;
    if (part == leg.parts.end()) continue;
    for (uint8_t round = 1; round <= schedule().rounds(); ++round) {
      const uint16_t frame = leg.course.frame_of(round, machine);
      const bool waits =
          frame != Course::kNone && !frames_[schedule().first_frame(part) + frame].here;
      if (waits && (earliest == 0 || round < earliest)) earliest = round;
    }
  }
  return earliest;
}

Result<bool> Operation::advance(uint64_t now_ns) {
  if (state_ != State::kExchanging || ended_) return false;
  bool worked = false;
  if (results_only_ && setup_.machines > 1) {
    if (!results_ready()) return false;
    CGX_ASSIGN_OR_RETURN(worked, finish_ready());
  } else if (!to_keep_.empty()) {
    CGX_ASSIGN_OR_RETURN(worked, keep_residuals());
  } else {
    CGX_ASSIGN_OR_RETURN(worked, finish_ready());
    if (!worked && to_begin_ > 0) {
      CGX_ASSIGN_OR_RETURN(worked, begin_next());
    }
  }
  if (worked) last_progress_ns_ = now_ns;
  CGX_RETURN_IF_ERROR(check_complete());
  return worked;
}

// With nothing else left to do, what others will compare is hashed: the ranks have not heard of the
// result yet, so it is still what was decoded.
Status Operation::check_complete() {
  const auto done = [this] { return parts_left_ == 0 && asked_.empty(); };
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

// In turn, one part of each flow that may go on.
Result<bool> Operation::begin_next() {
  const auto flows = static_cast<uint32_t>(flows_.size());
  for (uint32_t i = 0; i < flows; ++i) {
    const uint32_t flow = (next_flow_ + i) % flows;
    const Flow& planned = schedule().flows()[flow];
    const FlowState& state = flows_[flow];
    if (state.next == planned.parts.end() || state.next - state.lowest >= planned.ahead) continue;
    next_flow_ = (flow + 1) % flows;
    return begin(flow);
  }
  return false;
}

// REQUIRES: the flow has a next part and may go on. False: no slab is free.
Result<bool> Operation::begin(uint32_t flow) {
  const MoveOf of{.part = flows_[flow].next};
  const bool encodes = move_of(of).kind == MoveKind::kEncode;
  const SlabId slab = encodes ? pool_.take_for_own() : kNoSlab;
  if (encodes && slab == kNoSlab) return false;
  ++flows_[flow].next;
  --to_begin_;
  parts_[of.part].begun |= 1u << of.move;
  if (encodes) {
    CGX_RETURN_IF_ERROR(ask_encode(of, Slab(pool_, slab)));
  } else {
    CGX_RETURN_IF_ERROR(
        ask({.of = of}, {.kind = SiteJobKind::kLocalReduce, .presence = &own_presence_}));
  }
  return true;
}

Status Operation::done(const MoveOf& of) {
  PartState& state = parts_[of.part];
  state.done |= 1u << of.move;
  Live none;
  CGX_RETURN_IF_ERROR(follow(of.part, none));
  return {};
}

// Makes the moves whose turn has come.
Status Operation::follow(uint32_t part, Live& live) {
  const Course& course = schedule().course(part);
  PartState& state = parts_[part];
  for (uint32_t i = 0; i < course.moves().size(); ++i) {
    const Move& move = course.moves()[i];
    const bool turn = !(state.begun >> i & 1) && (move.after & ~state.done) == 0;
    if (!turn || move.after == 0) continue;  // begins with its flow, or with a frame
    if (move.kind == MoveKind::kReceive) continue;
    state.begun |= 1u << i;
    CGX_RETURN_IF_ERROR(follow_move({part, i}, live));
  }
  if (state.done == course.all()) close_part(part);
  return {};
}

Status Operation::follow_move(const MoveOf& of, Live& live) {
  const Move& move = move_of(of);
  switch (move.kind) {
    case MoveKind::kSend:
      send(of);
      break;
    case MoveKind::kForward:
      return forward(of, live);
    case MoveKind::kDecode:
      return ask_decode(of, live);
    case MoveKind::kReduce:
    case MoveKind::kCombine: {
      const bool now = live.frame != Course::kNone && to_keep_.empty() && site_consumes_;
      bool finished = false;
      if (now) {
        CGX_ASSIGN_OR_RETURN(finished, finish(of, live));
      }
      if (!finished) ready_.push_back(of);
      break;
    }
    case MoveKind::kEncode:
    case MoveKind::kReceive:
    case MoveKind::kLocalReduce:
      CGX_ASSERT(false);
  }
  return {};
}

void Operation::close_part(uint32_t part) {
  if (std::exchange(parts_[part].closed, true)) return;
  --parts_left_;
  const uint16_t flow = schedule().flow_of(part);
  if (flow == Schedule::kNoFlow) return;
  FlowState& at = flows_[flow];
  const uint32_t end = schedule().flows()[flow].parts.end();
  while (at.lowest < end && parts_[at.lowest].closed) ++at.lowest;
}

void Operation::send(const MoveOf& of) {
  const Move& move = move_of(of);
  const Held& made = buffer_at(of.part, move.buffer);
  const bool bitmap = !presence_of(of.part, {Source::Kind::kBuffer, move.buffer}).all();
  for (const uint32_t machine : move.machines) {
    pool_.add_reference(made.slab.id());
    port_.send_part(*this, {.machine = machine,
                            .round = move.round,
                            .part = of.part,
                            .bitmap = bitmap,
                            .descriptor = prefix_bytes(of.part, move.round) > 0,
                            .slab = made.slab.id(),
                            .length = made.offset + made.length});
  }
  parts_[of.part].done |= 1u << of.move;
}

// From the slab that it lies in, or one that it is copied to.
Status Operation::forward(const MoveOf& of, Live& live) {
  const Move& move = move_of(of);
  CGX_ASSERT(live.frame == move.sources.front().index);
  if (live.owned == nullptr || live.payload.data() != live.owned->bytes().data()) {
    const Move& receive = schedule().course(of.part).moves()[std::countr_zero(move.after)];
    CGX_RETURN_IF_ERROR(copy_live(receive.machines.front(), live));
  }
  for (const uint32_t machine : move.machines) {
    pool_.add_reference(live.owned->id());
    port_.send_part(*this, {.machine = machine,
                            .round = move.round,
                            .part = of.part,
                            .bitmap = live.payload.size() > live.ranges.size(),
                            .slab = live.owned->id(),
                            .length = static_cast<uint32_t>(live.payload.size())});
  }
  parts_[of.part].done |= 1u << of.move;
  return {};
}

std::vector<Operation::MoveOf>::const_iterator Operation::next_ready() const {
  if (!results_only_) return ready_.begin();
  return std::find_if(ready_.begin(), ready_.end(), [this](const MoveOf& of) {
    return move_of(of).kind == MoveKind::kCombine || move_of(of).shared;
  });
}

Result<bool> Operation::finish_ready() {
  const auto next = next_ready();
  if (next == ready_.end()) return false;
  const MoveOf of = *next;
  const auto index = next - ready_.begin();
  Live none;
  CGX_ASSIGN_OR_RETURN(const bool finished, finish(of, none));
  if (finished) ready_.erase(ready_.begin() + index);
  return finished;
}

// Every source is there: held, or in hand. False: no slab is free.
Result<bool> Operation::finish(const MoveOf& of, Live& live) {
  if (move_of(of).kind == MoveKind::kReduce) {
    CGX_ASSIGN_OR_RETURN(const bool reduced, reduce(of, live));
    live.used |= reduced;
    return reduced;
  }
  live.used = true;
  CGX_ASSIGN_OR_RETURN(const Presence* const presence, presence_of_sum(move_of(of), of.part));
  CGX_RETURN_IF_ERROR(
      ask({.of = of},
          {.kind = SiteJobKind::kCombine, .presence = presence, .from = contributions(of, live)}));
  return true;
}

Result<bool> Operation::reduce(const MoveOf& of, const Live& live) {
  const SlabId taken = pool_.take_for_own();
  if (taken == kNoSlab) return false;
  Asked asked{.of = of, .slab = Slab(pool_, taken)};
  const Move& move = move_of(of);
  CGX_ASSIGN_OR_RETURN(const Presence* const presence, presence_of_sum(move, of.part));
  asked.offset = write_front(of, *presence, asked.slab.bytes());
  SiteJob job{.kind = SiteJobKind::kReduce,
              .presence = presence,
              .from = contributions(of, live),
              .results = move.results,
              .into = taken,
              .offset = asked.offset};
  CGX_RETURN_IF_ERROR(ask(std::move(asked), job));
  return true;
}

// In the order of addition.
std::span<const SiteContribution> Operation::contributions(const MoveOf& of, const Live& live) {
  const std::vector<Source>& sources = move_of(of).sources;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    SiteContribution& from = contributions_[i];
    from = {.own_ranks = source.kind == Source::Kind::kOwnRanks, .in_rack = source.in_rack};
    if (from.own_ranks) continue;
    from.presence = &presence_of(of.part, source);
    const bool of_frame = source.kind == Source::Kind::kFrame;
    const Held& held =
        of_frame ? frame_at(of.part, source.index) : buffer_at(of.part, source.index);
    from.frame = {.offset = held.offset, .length = held.length};
    if (of_frame && source.index == live.frame) {
      from.frame.live = live.ranges.data();
    } else if (held.slab) {
      from.frame.slab = held.slab.id();
    }
  }
  return std::span(contributions_).first(sources.size());
}

}  // namespace cgx::scheduler
