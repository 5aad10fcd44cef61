#include "scheduler/operation.h"

#include <algorithm>
#include <cstring>

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
    if (k == setup_.machine || direct()) continue;
    peers_[k].gathered.resize(layout.chunks(k));
    gathers_left_ += layout.chunks(k);
    sends_left_ += layout.chunks(k);
  }
  if (direct()) sends_left_ = 1;
  keep_residuals_of_absent();
}

// A tensor absent here that others may have keeps its residual, except in the own shard, where the
// reduction writes it (PROTOCOL 6): the tentative slot starts as a copy of the confirmed one.
void Operation::keep_residuals_of_absent() {
  for (uint32_t i = 0; i < setup_.segments.size(); ++i) {
    const LocalSegment& segment = setup_.segments[i];
    if (!segment.inputs.empty() || segment.residual_tentative == nullptr) continue;
    const uint64_t elements = (*setup_.table)[setup_.group->segments[i].tensor].elements;
    std::memcpy(segment.residual_tentative, segment.residual_confirmed, elements * sizeof(float));
    host_.count(Counter::kcopied_bytes, elements * sizeof(float));
  }
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
  CGX_ASSIGN_OR_RETURN(const bool reduced, reduce_ready());
  const bool worked = reduced || send_next();
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
  const Status status = header.phase == Phase::kScatter ? receive_scatter(header, payload, owned)
                                                        : receive_gather(header, payload);
  if (status.ok()) check_complete();
  return status;
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
  const auto wrong_size = [&](uint64_t expected) {
    return protocol_error("frame of machine " + std::to_string(header.source) + ", group " +
                          std::to_string(header.group) + ", shard " + std::to_string(header.shard) +
                          ", chunk " + std::to_string(header.chunk) + " holds " +
                          std::to_string(payload.size()) + " bytes, the plan says " +
                          std::to_string(expected));
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
  if (parsed.ranges.size() != expected) return wrong_size(expected);
  return parsed;
}

Status Operation::receive_scatter(const wire::FrameHeader& header,
                                  std::span<const std::byte> payload, Slab* owned) {
  const uint32_t shard = direct() ? header.source : setup_.machine;
  if (header.shard != shard || header.chunk >= own_.size()) {
    return protocol_error("scatter frame for shard " + std::to_string(header.shard) + ", chunk " +
                          std::to_string(header.chunk) + " reached machine " +
                          std::to_string(setup_.machine));
  }
  Arrival& arrival = arrivals_[size_t{header.chunk} * setup_.machines + header.source];
  if (arrival.here) {
    host_.count(Counter::kframes_unexpected, 1);
    return {};
  }
  const Part& part = setup_.layout->part(shard, header.chunk);
  const uint64_t prefix = scatter_prefix(header.chunk);
  CGX_ASSIGN_OR_RETURN(Payload parsed, parse(header, payload, part, prefix));
  peers_[header.source].presence = parsed.presence;
  arrival.here = true;
  arrival.length = static_cast<uint32_t>(parsed.ranges.size());
  OwnChunk& chunk = own_[header.chunk];
  if (++chunk.arrived < setup_.machines - 1) {
    return hold(header.chunk, header.source, parsed.ranges, owned);
  }
  const Live live{header.source, parsed.ranges};
  CGX_ASSIGN_OR_RETURN(const bool reduced, reduce_chunk(header.chunk, live));
  if (reduced) return {};
  ready_.push_back(header.chunk);
  return hold(header.chunk, header.source, parsed.ranges, owned);
}

Status Operation::hold(uint32_t chunk, uint32_t machine, std::span<const std::byte> ranges,
                       Slab* owned) {
  if (ranges.empty()) return {};
  Arrival& arrival = arrivals_[size_t{chunk} * setup_.machines + machine];
  if (owned != nullptr) {
    arrival.offset = static_cast<uint32_t>(ranges.data() - owned->bytes().data());
    arrival.held = std::move(*owned);
    return {};
  }
  const SlabId slab = pool_.take();
  if (slab == kNoSlab || ranges.size() > pool_.slab_bytes()) {
    return protocol_error("machine " + std::to_string(machine) +
                          " sent more parts ahead than the plan allows");
  }
  arrival.held = Slab(pool_, slab);
  std::memcpy(arrival.held.bytes().data(), ranges.data(), ranges.size());
  host_.count(Counter::kheld_bytes, ranges.size());
  return {};
}

Status Operation::receive_gather(const wire::FrameHeader& header,
                                 std::span<const std::byte> payload) {
  const GroupLayout& layout = *setup_.layout;
  PeerState& peer = peers_[header.source];
  if (direct() || header.shard != header.source || header.chunk >= peer.gathered.size() ||
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
  uint64_t offset = 0;
  kernels::RangeStats stats;
  for (const Slice& slice : layout.slices(part)) {
    if (!parsed.presence.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    const Segment& planned = setup_.group->segments[slice.segment];
    const bool feedback = segment.residual_tentative != nullptr;
    const kernels::DecodeJob job{
        .spec = planned.spec,
        .encoded = parsed.ranges.subspan(offset, slice.range_bytes),
        .elements = slice.elements,
        .dtype = (*setup_.table)[planned.tensor].dtype,
        .targets = targets(segment, slice),
        .target_count = static_cast<uint32_t>(segment.outputs.size()),
        .residual_in = feedback ? segment.residual_confirmed + slice.first_element : nullptr,
        .residual_out = feedback ? segment.residual_tentative + slice.first_element : nullptr};
    CGX_RETURN_IF_ERROR(lane_.decode(job, stats));
    offset += slice.encoded_bytes;
  }
  peer.gathered[header.chunk] = true;
  --peer.unanswered;
  --gathers_left_;
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

// --- Reducing
// --------------------------------------------------------------------------------------

std::span<const std::byte> Operation::held_ranges(const Arrival& arrival) {
  if (!arrival.held) return {};
  return arrival.held.bytes().subspan(arrival.offset, arrival.length);
}

bool Operation::reduce_locally() {
  const GroupLayout& layout = *setup_.layout;
  if (local_chunk_ >= own_.size()) return false;
  const Part& part = layout.part(0, local_chunk_++);
  --own_left_;
  for (const Slice& slice : layout.slices(part)) {
    const LocalSegment& segment = setup_.segments[slice.segment];
    if (segment.inputs.empty()) continue;
    const kernels::LocalReduceJob job{
        .source = raw_view(segment, slice),
        .elements = slice.elements,
        .targets = targets(segment, slice),
        .target_count = static_cast<uint32_t>(segment.outputs.size())};
    lane_.local_reduce(job);
    if (segment.residual_tentative != nullptr) {
      std::memset(segment.residual_tentative + slice.first_element, 0,
                  slice.elements * sizeof(float));
    }
  }
  return true;
}

Result<bool> Operation::reduce_ready() {
  if (ready_.empty()) return false;
  CGX_ASSIGN_OR_RETURN(const bool reduced, reduce_chunk(ready_.back(), Live{}));
  if (reduced) ready_.pop_back();
  return reduced;
}

// False: no slab is free. The own shard's part comes from the local ranks, exactly; the others'
// from the frame in hand or held slabs.
Result<bool> Operation::reduce_chunk(uint32_t chunk, const Live& live) {
  if (direct() && sends_left_ > 0 && !send_direct()) return false;  // inputs may be outputs
  const SlabId taken = pool_.take();
  if (taken == kNoSlab) return false;
  Slab out(pool_, taken);
  const GroupLayout& layout = *setup_.layout;
  Presence present = own_presence_;
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    if (k != setup_.machine) present.merge(peers_[k].presence);
  }
  CGX_RETURN_IF_ERROR(learn_union(present));

  const bool bitmap = !present.all();
  uint64_t written = 0;
  if (bitmap) {
    present.write(out.bytes().first(layout.bitmap_bytes()));
    written = layout.bitmap_bytes();
  }
  std::vector<uint64_t> offsets(setup_.machines, 0);
  kernels::RangeStats stats;
  const Part& part = layout.part(setup_.machine, chunk);
  for (const Slice& slice : layout.slices(part)) {
    if (!present.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    const Segment& planned = setup_.group->segments[slice.segment];
    for (uint32_t k = 0; k < setup_.machines; ++k) {
      kernels::Contribution& contribution = contributions_[k];
      contribution = {};
      if (k == setup_.machine) {
        contribution.kind = kernels::Contribution::Kind::kRaw;
        contribution.raw = raw_view(segment, slice);
      } else if (peers_[k].presence.test(slice.segment)) {
        const Arrival& arrival = arrivals_[size_t{chunk} * setup_.machines + k];
        const std::span<const std::byte> ranges =
            k == live.machine ? live.payload : held_ranges(arrival);
        contribution.kind = kernels::Contribution::Kind::kEncoded;
        contribution.encoded = ranges.subspan(offsets[k], slice.range_bytes);
        offsets[k] += slice.encoded_bytes;
      }
    }
    const bool feedback = segment.residual_tentative != nullptr;
    const kernels::ReduceJob job{
        .spec = planned.spec,
        .contributions = contributions_,
        .elements = slice.elements,
        .dtype = (*setup_.table)[planned.tensor].dtype,
        .key = draw_key(slice, Phase::kGather),
        .residual_in = feedback ? segment.residual_confirmed + slice.first_element : nullptr,
        .residual_out = feedback ? segment.residual_tentative + slice.first_element : nullptr,
        .encoded = out.bytes().subspan(written, slice.range_bytes),
        .targets = targets(segment, slice),
        .target_count = static_cast<uint32_t>(segment.outputs.size())};
    CGX_RETURN_IF_ERROR(lane_.reduce(job, stats).status());
    std::memset(out.bytes().data() + written + slice.range_bytes, 0,
                slice.encoded_bytes - slice.range_bytes);
    written += slice.encoded_bytes;
  }
  host_.count(Counter::knonfinite_buckets, stats.nonfinite_buckets);
  host_.count(Counter::ksaturated_values, stats.saturated);

  own_[chunk].reduced = true;
  --own_left_;
  for (uint32_t k = 0; k < setup_.machines; ++k) {
    arrivals_[size_t{chunk} * setup_.machines + k].held.reset();
  }
  if (direct()) return true;
  for (uint32_t hop = 1; hop < setup_.machines; ++hop) {
    const uint32_t to = (setup_.machine + hop) % setup_.machines;
    pool_.add_reference(out.id());
    host_.send_part(*this, {.machine = to,
                            .phase = Phase::kGather,
                            .shard = setup_.machine,
                            .chunk = chunk,
                            .bitmap = bitmap,
                            .slab = out.id(),
                            .length = static_cast<uint32_t>(written)});
  }
  return true;
}

// --- Sending
// ---------------------------------------------------------------------------------------

bool Operation::send_next() {
  if (sends_left_ == 0) return false;
  if (direct()) return send_direct();
  const uint32_t others = setup_.machines - 1;
  for (uint32_t i = 0; i < others; ++i) {
    const uint32_t hop = (next_peer_ + i) % others;
    const uint32_t machine = (setup_.machine + 1 + hop) % setup_.machines;
    const PeerState& peer = peers_[machine];
    if (peer.next_chunk == peer.gathered.size() || peer.unanswered >= setup_.inflight_max) continue;
    next_peer_ = (hop + 1) % others;
    return send_scatter(machine);
  }
  return false;
}

bool Operation::send_scatter(uint32_t machine) {
  const SlabId slab = pool_.take();
  if (slab == kNoSlab) return false;
  PeerState& peer = peers_[machine];
  const uint32_t chunk = peer.next_chunk++;
  ++peer.unanswered;
  --sends_left_;
  const uint32_t length =
      encode_part(setup_.layout->part(machine, chunk), chunk, pool_.bytes(slab));
  host_.send_part(*this, {.machine = machine,
                          .phase = Phase::kScatter,
                          .shard = machine,
                          .chunk = chunk,
                          .bitmap = !own_presence_.all(),
                          .slab = slab,
                          .length = length});
  return true;
}

bool Operation::send_direct() {
  const SlabId slab = pool_.take();
  if (slab == kNoSlab) return false;
  sends_left_ = 0;
  const uint32_t length = encode_part(setup_.layout->part(setup_.machine, 0), 0, pool_.bytes(slab));
  for (uint32_t hop = 1; hop < setup_.machines; ++hop) {
    pool_.add_reference(slab);
    host_.send_part(*this, {.machine = (setup_.machine + hop) % setup_.machines,
                            .phase = Phase::kScatter,
                            .shard = setup_.machine,
                            .chunk = 0,
                            .bitmap = !own_presence_.all(),
                            .slab = slab,
                            .length = length});
  }
  pool_.release(slab);
  return true;
}

// Returns the payload's length.
uint32_t Operation::encode_part(const Part& part, uint32_t chunk, std::span<std::byte> out) {
  const GroupLayout& layout = *setup_.layout;
  uint64_t written = scatter_prefix(chunk);
  if (written > 0) std::memcpy(out.data(), setup_.descriptor.data(), written);
  if (!own_presence_.all()) {
    own_presence_.write(out.subspan(written, layout.bitmap_bytes()));
    written += layout.bitmap_bytes();
  }
  for (const Slice& slice : layout.slices(part)) {
    if (!own_presence_.test(slice.segment)) continue;
    const LocalSegment& segment = setup_.segments[slice.segment];
    const bool feedback = segment.residual_tentative != nullptr;
    const kernels::EncodeJob job{
        .spec = setup_.group->segments[slice.segment].spec,
        .source = raw_view(segment, slice),
        .elements = slice.elements,
        .key = draw_key(slice, Phase::kScatter),
        .residual_out = feedback ? segment.residual_tentative + slice.first_element : nullptr,
        .encoded = out.subspan(written, slice.range_bytes)};
    kernels::RangeStats stats;
    lane_.encode(job, stats);
    host_.count(Counter::knonfinite_buckets, stats.nonfinite_buckets);
    host_.count(Counter::ksaturated_values, stats.saturated);
    std::memset(out.data() + written + slice.range_bytes, 0,
                slice.encoded_bytes - slice.range_bytes);
    written += slice.encoded_bytes;
  }
  return static_cast<uint32_t>(written);
}

kernels::RawView Operation::raw_view(const LocalSegment& segment, const Slice& slice) {
  const DType dtype = (*setup_.table)[setup_.group->segments[slice.segment].tensor].dtype;
  const uint64_t offset = slice.first_element * dtype_bytes(dtype);
  scratch_inputs_.clear();
  for (const std::byte* input : segment.inputs) scratch_inputs_.push_back(input + offset);
  return {.ranks = scratch_inputs_.data(),
          .rank_count = static_cast<uint32_t>(scratch_inputs_.size()),
          .dtype = dtype,
          .scale = segment.scale,
          .residual_in = segment.residual_confirmed == nullptr
                             ? nullptr
                             : segment.residual_confirmed + slice.first_element};
}

void* const* Operation::targets(const LocalSegment& segment, const Slice& slice) {
  const DType dtype = (*setup_.table)[setup_.group->segments[slice.segment].tensor].dtype;
  const uint64_t offset = slice.first_element * dtype_bytes(dtype);
  scratch_targets_.clear();
  for (std::byte* output : segment.outputs) scratch_targets_.push_back(output + offset);
  return scratch_targets_.data();
}

kernels::DrawKey Operation::draw_key(const Slice& slice, Phase phase) const {
  const kernels::DrawSource source{.job_seed = setup_.draw_seed,
                                   .communicator = setup_.draw_communicator,
                                   .tensor_name_hash = setup_.segments[slice.segment].name_hash,
                                   .step = setup_.step,
                                   .phase = static_cast<uint32_t>(phase),
                                   .site = setup_.machine};
  return {kernels::draw_stream(source), slice.first_bucket};
}

}  // namespace cgx::scheduler
