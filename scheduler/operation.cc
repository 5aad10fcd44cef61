#include "scheduler/operation.h"

#include <algorithm>
#include <cstring>

#include "kernels/floats.h"

namespace cgx::scheduler {

using wire::Phase;

Operation::Operation(OperationSetup setup, const kernels::Lane& lane, BufferPool& pool,
                     OperationHost& host, uint64_t now_ns)
    : setup_(std::move(setup)),
      lane_(lane),
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
  if (setup_.norms) norms_.resize(setup_.segments.size());
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    peers_[k].presence = Presence(layout.segments());
    if (k == setup_.machine || allgather()) continue;
    peers_[k].gathered.resize(layout.chunks(k));
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

// A tensor absent here that others may have keeps its residual, except where the own shard's
// reduction writes it (PROTOCOL 6): before anything else is done the tentative slot becomes the
// confirmed one, in this step's units.
void Operation::find_residuals_to_keep() {
  for (uint32_t i = 0; i < setup_.segments.size(); ++i) {
    const LocalSegment& segment = setup_.segments[i];
    if (segment.inputs.empty() && segment.residual_tentative != nullptr) to_keep_.push_back(i);
  }
}

// About one part's. False: all are kept.
bool Operation::keep_residuals() {
  constexpr uint64_t kElements = 128 * 1024;
  if (to_keep_.empty()) return false;
  const LocalSegment& segment = setup_.segments[to_keep_.back()];
  const uint64_t elements =
      (*setup_.table)[setup_.group->segments[to_keep_.back()].tensor].elements;
  const uint64_t count = std::min(kElements, elements - kept_elements_);
  const float* const from = segment.residual_confirmed + kept_elements_;
  std::transform(
      from, from + count, segment.residual_tentative + kept_elements_,
      [scale = segment.residual_scale](float kept) { return kernels::rescaled(kept, scale); });
  host_.count(Counter::kcopied_bytes, count * sizeof(float));
  kept_elements_ += count;
  if (kept_elements_ < elements) return true;
  to_keep_.pop_back();
  kept_elements_ = 0;
  return true;
}

bool Operation::waits_for(uint32_t machine) const {
  for (uint32_t chunk = 0; chunk < own_.size(); ++chunk) {
    if (!arrivals_[size_t{chunk} * setup_.machines + machine].here) return true;
  }
  const std::vector<bool>& gathered = peers_[machine].gathered;
  return std::find(gathered.begin(), gathered.end(), false) != gathered.end();
}

Result<bool> Operation::advance(uint64_t now_ns) {
  if (state_ != State::kExchanging) return false;
  if (setup_.machines == 1) {
    const bool worked = reduce_locally();
    check_complete();
    return worked;
  }
  if (keep_residuals()) {
    last_progress_ns_ = now_ns;
    return true;
  }
  CGX_ASSIGN_OR_RETURN(bool worked, finish_ready());
  if (!worked && sends_left_ > 0) worked = allgather() ? send_gather() : send_scatter();
  if (worked) last_progress_ns_ = now_ns;
  check_complete();
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
  if (status.ok()) check_complete();
  return status;
}

Status Operation::receive_result(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload, uint64_t now_ns) {
  results_only_ = true;
  if (header.phase == Phase::kScatter && !allgather()) return {};
  return receive(header, payload, now_ns);
}

void Operation::check_complete() {
  if (own_left_ == 0 && gathers_left_ == 0 && sends_left_ == 0) state_ = State::kComplete;
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
    const Status status = take_range(planned(slice), dtype(slice), slice, rest).status();
    if (status.ok()) continue;
    return protocol_error("of tensor '" + (*setup_.table)[planned(slice).tensor].name +
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
  if (allgather() && last_but_own && !results_only_ && to_keep_.empty()) send_gather();
  if (++chunk.arrived < needed) {
    return hold(header.chunk, header.source, parsed.ranges, owned);
  }
  if (to_keep_.empty()) {
    CGX_ASSIGN_OR_RETURN(const bool done,
                         finish_chunk(header.chunk, Live{header.source, parsed.ranges}));
    if (done) return {};
  }
  ready_.push_back(header.chunk);
  return hold(header.chunk, header.source, parsed.ranges, owned);
}

Status Operation::hold(uint32_t chunk, uint32_t machine, std::span<const std::byte> ranges,
                       Slab* owned) {
  if (ranges.empty()) return {};
  Arrival& arrived = arrival(chunk, machine);
  if (owned != nullptr) {
    arrived.offset = static_cast<uint32_t>(ranges.data() - owned->bytes().data());
    arrived.held = std::move(*owned);
    return {};
  }
  const SlabId slab = pool_.take_for_received();
  if (slab == kNoSlab || ranges.size() > pool_.slab_bytes()) {
    return protocol_error("machine " + std::to_string(machine) +
                          " sent more parts ahead than the plan allows");
  }
  arrived.held = Slab(pool_, slab);
  std::memcpy(arrived.held.bytes().data(), ranges.data(), ranges.size());
  host_.count(Counter::kheld_bytes, ranges.size());
  return {};
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
  if (!allgather()) return reduce_chunk(chunk, live);
  CGX_RETURN_IF_ERROR(combine_chunk(chunk, live));
  return true;
}

void Operation::close_chunk(uint32_t chunk) {
  own_[chunk].done = true;
  --own_left_;
  while (lowest_ < own_.size() && own_[lowest_].done) ++lowest_;
  for (uint32_t k = 0; k < setup_.machines; ++k) arrival(chunk, k).held.reset();
}

// By machine, what it contributes to a chunk.
std::vector<std::span<const std::byte>> Operation::ranges_of(uint32_t chunk, const Live& live) {
  std::vector<std::span<const std::byte>> ranges(setup_.machines);
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    const Arrival& arrived = arrival(chunk, k);
    if (k == live.machine) {
      ranges[k] = live.payload;
    } else if (arrived.held) {
      ranges[k] = arrived.held.bytes().subspan(arrived.offset, arrived.length);
    }
  }
  return ranges;
}

// The machine's part of a slice, from the front of what is left of its ranges.
Status Operation::take_contribution(uint32_t machine, const Slice& slice,
                                    std::span<const std::byte>& rest) {
  kernels::Contribution& contribution = contributions_[machine];
  contribution = {};
  if (!peers_[machine].presence.test(slice.segment)) return {};
  contribution.kind = kernels::Contribution::Kind::kEncoded;
  CGX_ASSIGN_OR_RETURN(contribution.encoded, take_range(planned(slice), dtype(slice), slice, rest));
  return {};
}

bool Operation::reduce_locally() {
  const GroupLayout& layout = *setup_.layout;
  if (next_own_ >= own_.size()) return false;
  const Part& part = layout.part(0, next_own_++);
  const uint64_t began_ns = begin_span(part);
  --own_left_;
  for (const Slice& slice : layout.slices(part)) {
    const LocalSegment& segment = setup_.segments[slice.segment];
    if (segment.inputs.empty()) continue;
    const bool feedback = segment.residual_tentative != nullptr;
    lane_.local_reduce(
        {.source = raw_view(segment, slice),
         .elements = slice.elements,
         .targets = targets(segment, slice),
         .target_count = static_cast<uint32_t>(segment.outputs.size()),
         .residual_out = feedback ? segment.residual_tentative + slice.first_element : nullptr,
         .bucket = std::min(planned(slice).spec.bucket, kBucketMax)});
  }
  record_span(EventKind::kreduce, began_ns, part);
  return true;
}

// --- Encoding and sending
// --------------------------------------------------------------------------

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

Operation::Encoded Operation::encode_part(const Part& part, uint32_t chunk,
                                          std::span<std::byte> out) {
  const uint64_t began_ns = begin_span(part);
  const GroupLayout& layout = *setup_.layout;
  uint64_t written = scatter_prefix(chunk);
  if (written > 0) std::memcpy(out.data(), setup_.descriptor.data(), written);
  if (!own_presence_.all()) {
    own_presence_.write(out.subspan(written, layout.bitmap_bytes()));
    written += layout.bitmap_bytes();
  }
  const auto offset = static_cast<uint32_t>(written);
  for (const Slice& slice : layout.slices(part)) {
    if (!own_presence_.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    const bool feedback = segment.residual_tentative != nullptr;
    const kernels::EncodeJob job{
        .spec = planned(slice).spec,
        .source = raw_view(segment, slice),
        .elements = slice.elements,
        .key = draw_key(slice, Phase::kScatter),
        .residual_out = feedback ? segment.residual_tentative + slice.first_element : nullptr,
        .encoded = out.subspan(written, slice.range_bytes),
        .norms = setup_.norms && planned(slice).spec.codec != 0};
    kernels::RangeStats stats;
    const uint64_t used = lane_.encode(job, stats);
    note(slice, stats);
    written += pad_range(out.subspan(written), used);
  }
  record_span(EventKind::kencode, began_ns, part);
  return {offset, static_cast<uint32_t>(written) - offset};
}

void Operation::note(const Slice& slice, const kernels::RangeStats& stats) {
  host_.count(Counter::knonfinite_buckets, stats.nonfinite_buckets);
  host_.count(Counter::ksaturated_values, stats.saturated);
  if (norms_.empty()) return;
  norms_[slice.segment].intended_sq += stats.intended_sq;
  norms_[slice.segment].sent_sq += stats.sent_sq;
}

kernels::RawView Operation::raw_view(const LocalSegment& segment, const Slice& slice) {
  const uint64_t offset = slice.first_element * dtype_bytes(dtype(slice));
  scratch_inputs_.clear();
  for (const std::byte* input : segment.inputs) scratch_inputs_.push_back(input + offset);
  return {.ranks = scratch_inputs_.data(),
          .rank_count = static_cast<uint32_t>(scratch_inputs_.size()),
          .dtype = dtype(slice),
          .scale = segment.scale,
          .residual_in = segment.residual_confirmed == nullptr
                             ? nullptr
                             : segment.residual_confirmed + slice.first_element,
          .residual_scale = segment.residual_scale};
}

void* const* Operation::targets(const LocalSegment& segment, const Slice& slice) {
  const uint64_t offset = slice.first_element * dtype_bytes(dtype(slice));
  scratch_targets_.clear();
  for (std::byte* output : segment.outputs) scratch_targets_.push_back(output + offset);
  return scratch_targets_.data();
}

kernels::DrawKey Operation::draw_key(const Slice& slice, Phase phase) const {
  const CodecSpec& spec = setup_.group->segments[slice.segment].spec;
  const bool shared = kernels::find_codec(spec.codec)->shared_draws;
  const kernels::DrawSource source{.job_seed = setup_.draw_seed,
                                   .communicator = setup_.draw_communicator,
                                   .tensor_name_hash = setup_.segments[slice.segment].name_hash,
                                   .step = setup_.step,
                                   .phase = shared ? 0 : static_cast<uint32_t>(phase),
                                   .site = shared ? 0 : setup_.machine};
  return {kernels::draw_stream(source), slice.first_bucket};
}

}  // namespace cgx::scheduler
