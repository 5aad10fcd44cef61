// Operation, its site: what is asked there, and what follows from the answers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler/operation.h"

namespace cgx::scheduler {

using wire::Phase;

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
  asked.ticket = host_.new_ticket();
  if (about_a_part(job.kind)) asked.began_ns = begin_span(part_of(asked));
  job.shard = asked.shard;
  job.chunk = asked.chunk;
  const std::optional<SiteAnswer> answer = work_->ask(asked.ticket, job);
  if (answer) return take(asked, *answer);
  host_.expect(asked.ticket, *this);
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
  return check_complete();
}

void Operation::end() {
  ended_ = true;
  work_->end();
}

Status Operation::take(Asked& asked, const SiteAnswer& answer) {
  CGX_RETURN_IF_ERROR(answer.status);
  host_.count(Counter::knonfinite_buckets, answer.nonfinite_buckets);
  host_.count(Counter::ksaturated_values, answer.saturated);
  if (about_a_part(asked.kind)) {
    const uint32_t machine = asked.kind == SiteJobKind::kDecode ? asked.shard : 0;
    record_span(span_of(asked.kind), asked.began_ns, part_of(asked), machine);
  }
  switch (asked.kind) {
    case SiteJobKind::kEncode:
      encoded(asked, answer);
      break;
    case SiteJobKind::kDecode:
      decoded(asked);
      break;
    case SiteJobKind::kReduce:
      reduced(asked, answer);
      break;
    case SiteJobKind::kCombine:
      close_chunk(asked.chunk);
      break;
    case SiteJobKind::kLocalReduce:
      --own_left_;
      break;
    case SiteJobKind::kKeep:
      kept(asked);
      break;
    case SiteJobKind::kHash:
      result_hash_ = answer.hash;
      break;
  }
  return {};
}

// --- Encoding

// Descriptor and bitmap come before what the site writes.
Status Operation::ask_encode(uint32_t shard, uint32_t chunk, Slab slab) {
  const std::span<std::byte> out = slab.bytes();
  uint64_t written = scatter_prefix(chunk);
  if (written > 0) std::memcpy(out.data(), setup_.descriptor.data(), written);
  if (!own_presence_.all()) {
    own_presence_.write(out.subspan(written, setup_.layout->bitmap_bytes()));
    written += setup_.layout->bitmap_bytes();
  }
  const SiteJob job{.kind = SiteJobKind::kEncode,
                    .presence = &own_presence_,
                    .into = slab.id(),
                    .offset = static_cast<uint32_t>(written)};
  return ask({.shard = shard, .chunk = chunk, .slab = std::move(slab), .offset = job.offset}, job);
}

void Operation::encoded(Asked& asked, const SiteAnswer& answer) {
  if (results_only_) return;  // it is not sent any more
  const bool bitmap = !own_presence_.all();
  const uint32_t length = asked.offset + answer.bytes;
  const SlabId slab = asked.slab.id();
  if (!allgather()) {
    peers_[asked.shard].parts[asked.chunk] = PartState::kSent;
    pool_.add_reference(slab);
    host_.send_part(*this, {.machine = asked.shard,
                            .phase = Phase::kScatter,
                            .shard = asked.shard,
                            .chunk = asked.chunk,
                            .bitmap = bitmap,
                            .slab = slab,
                            .length = length});
    return;
  }
  Arrival& own = arrival(asked.chunk, setup_.machine);
  own.here = true;
  own.held = std::move(asked.slab);
  own.offset = asked.offset;
  own.length = answer.bytes;
  if (++own_[asked.chunk].arrived == setup_.machines) ready_.push_back(asked.chunk);
  send_to_all(Phase::kScatter, asked.chunk, bitmap, slab, length);
}

// --- Residuals that no job writes

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
  const uint32_t segment = to_keep_.back();
  const uint64_t elements = (*setup_.table)[setup_.group->segments[segment].tensor].elements;
  const uint64_t count = std::min(kElements, elements - kept_elements_);
  keeping_ = true;
  CGX_RETURN_IF_ERROR(ask(
      {.count = count},
      {.kind = SiteJobKind::kKeep, .segment = segment, .first = kept_elements_, .count = count}));
  return true;
}

void Operation::kept(const Asked& asked) {
  keeping_ = false;
  host_.count(Counter::kcopied_bytes, asked.count * sizeof(float));
  kept_elements_ += asked.count;
  const uint32_t tensor = setup_.group->segments[to_keep_.back()].tensor;
  if (kept_elements_ < (*setup_.table)[tensor].elements) return;
  to_keep_.pop_back();
  kept_elements_ = 0;
}

}  // namespace cgx::scheduler
