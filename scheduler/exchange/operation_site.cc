// Operation, its site: what is asked there, and what follows from the answers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler/exchange/operation.h"

namespace cgx::scheduler {

namespace {

constexpr EventKind span_of(SiteJobKind kind) {
  switch (kind) {
    case SiteJobKind::kEncode:
      return EventKind::kencode;
    case SiteJobKind::kDecode:
      return EventKind::kdecode;
    case SiteJobKind::kCombine:
      return EventKind::kcombine;
    default:
      return EventKind::kreduce;
  }
}

constexpr bool about_a_part(SiteJobKind kind) {
  return kind != SiteJobKind::kKeep && kind != SiteJobKind::kHash;
}

}  // namespace

Status Operation::ask(Asked asked, SiteJob job) {
  asked.kind = job.kind;
  asked.ticket = port_.new_ticket();
  if (about_a_part(job.kind)) asked.began_ns = begin_span(setup_.layout->part(asked.of.part));
  job.part = asked.of.part;
  const std::optional<SiteAnswer> answer = work_->ask(asked.ticket, job);
  if (answer) return take(asked, *answer);
  port_.expect(asked.ticket, *this);
  asked_.push_back(std::move(asked));
  return {};
}

Status Operation::answered(Ticket ticket, const SiteAnswer& answer, uint64_t now_ns) {
  const auto found = std::find_if(asked_.begin(), asked_.end(),
                                  [&](const Asked& each) { return each.ticket == ticket; });
  CGX_ASSERT(found != asked_.end());
  Asked asked = std::move(*found);
  asked_.erase(found);
  if (ended_) return {};
  last_progress_ns_ = now_ns;
  CGX_RETURN_IF_ERROR(take(asked, answer));
  return ended_ ? Status() : check_complete();
}

void Operation::end() {
  ended_ = true;
  work_->end();
}

void Operation::stop_sending() {
  results_only_ = true;
  if (tickets_open()) work_->give_way();
}

Status Operation::take(Asked& asked, const SiteAnswer& answer) {
  if (results_only_ && answer.status.code() == StatusCode::kCANCELLED) {
    ended_ = true;
    ready_.clear();
    if (tickets_open()) work_->give_way();  // what was asked for since
    return {};
  }
  CGX_RETURN_IF_ERROR(answer.status);
  port_.count(Counter::knonfinite_buckets, answer.nonfinite_buckets);
  port_.count(Counter::ksaturated_values, answer.saturated);
  if (about_a_part(asked.kind)) {
    record_span(span_of(asked.kind), asked.began_ns, setup_.layout->part(asked.of.part),
                asked.machine);
  }
  switch (asked.kind) {
    case SiteJobKind::kEncode:
    case SiteJobKind::kReduce:
      return made(asked, answer);
    case SiteJobKind::kDecode:
    case SiteJobKind::kCombine:
    case SiteJobKind::kLocalReduce:
      release_sources(asked.of);
      return done(asked.of);
    case SiteJobKind::kKeep:
      kept(asked);
      break;
    case SiteJobKind::kHash:
      result_hash_ = answer.hash;
      break;
  }
  return {};
}

// What was encoded goes out; it is kept where it will be added.
Status Operation::made(Asked& asked, const SiteAnswer& answer) {
  // It is not sent any more, so no machine has it.
  if (results_only_ && !move_of(asked.of).shared) return {};
  const uint32_t part = asked.of.part, buffer = move_of(asked.of).buffer;
  buffer_at(part, buffer) = {true, std::move(asked.slab), asked.offset, answer.bytes};
  release_sources(asked.of);
  CGX_RETURN_IF_ERROR(done(asked.of));
  if (!schedule().course(part).keeps(buffer)) buffer_at(part, buffer).slab.reset();
  return {};
}

void Operation::release_sources(const MoveOf& of) {
  for (const Source& source : move_of(of).sources) {
    if (source.kind == Source::Kind::kFrame) frame_at(of.part, source.index).slab.reset();
    if (source.kind == Source::Kind::kBuffer) buffer_at(of.part, source.index).slab.reset();
  }
}

// Descriptor and bitmap, where there are any, come before what the site writes.
uint32_t Operation::write_front(const MoveOf& of, const Presence& presence,
                                std::span<std::byte> out) const {
  uint64_t written = move_of(of).kind == MoveKind::kEncode ? prefix_bytes(of.part, 1) : 0;
  if (written > 0) std::memcpy(out.data(), setup_.descriptor.data(), written);
  if (!presence.all()) {
    presence.write(out.subspan(written, setup_.layout->bitmap_bytes()));
    written += setup_.layout->bitmap_bytes();
  }
  return static_cast<uint32_t>(written);
}

Status Operation::ask_encode(const MoveOf& of, Slab slab) {
  const SiteJob job{.kind = SiteJobKind::kEncode,
                    .presence = &own_presence_,
                    .in_rack = move_of(of).in_rack,
                    .into = slab.id(),
                    .offset = write_front(of, own_presence_, slab.bytes())};
  return ask({.of = of, .slab = std::move(slab), .offset = job.offset}, job);
}

Status Operation::ask_decode(const MoveOf& of, Live& live) {
  const uint16_t source = move_of(of).sources.front().index;
  const Course& course = schedule().course(of.part);
  const Move& receive = course.moves()[course.receive_of(source)];
  Asked asked{.of = of, .machine = receive.machines[source - receive.first_frame]};
  FrameBytes frame{.length = static_cast<uint32_t>(live.ranges.size()), .live = live.ranges.data()};
  if (!site_consumes_) {
    CGX_ASSIGN_OR_RETURN(frame, hold(asked.machine, live.ranges, live.owned, asked.slab));
  }
  live.used = true;
  return ask(std::move(asked), {.kind = SiteJobKind::kDecode, .presence = &union_, .frame = frame});
}

// A tensor absent here that others may have keeps its residual, except where the own shard's
// reduction writes it (PROTOCOL 6): before anything else is done the tentative slot becomes the
// confirmed one, in this step's units.
void Operation::find_residuals_to_keep() {
  for (uint32_t i = 0; i < setup_.segments.size(); ++i) {
    const LocalSegment& segment = setup_.segments[i];
    if (segment.inputs.empty() && segment.residual != nullptr) to_keep_.push_back(i);
  }
}

// About one part's. False: the site has yet to answer.
Result<bool> Operation::keep_residuals() {
  constexpr uint64_t kElements = 128 * 1024;
  if (keeping_) return false;
  const uint32_t index = to_keep_.back();
  const Segment& segment = setup_.group->segments[index];
  const uint64_t left = element_count(segment, *setup_.table) - kept_elements_;
  const uint64_t count = std::min(kElements, left);
  keeping_ = true;
  CGX_RETURN_IF_ERROR(ask({.count = count}, {.kind = SiteJobKind::kKeep,
                                             .segment = index,
                                             .first = segment.first_element() + kept_elements_,
                                             .count = count}));
  return true;
}

void Operation::kept(const Asked& asked) {
  keeping_ = false;
  port_.count(Counter::kcopied_bytes, asked.count * sizeof(float));
  kept_elements_ += asked.count;
  const Segment& segment = setup_.group->segments[to_keep_.back()];
  if (kept_elements_ < element_count(segment, *setup_.table)) return;
  to_keep_.pop_back();
  kept_elements_ = 0;
}

}  // namespace cgx::scheduler
