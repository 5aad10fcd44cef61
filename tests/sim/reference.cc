#include "tests/sim/reference.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>

#include "kernels/floats.h"
#include "proto/wire/frame.h"
#include "scheduler/exchange/operation_setup.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/plan/way.h"

namespace cgx::sim {

using kernels::Contribution;
using scheduler::Group;
using scheduler::GroupLayout;
using scheduler::Segment;
using scheduler::Slice;
using scheduler::TensorDesc;
using scheduler::TensorTable;

namespace {

const kernels::Lane& lane() {
  return **kernels::find_lane("scalar");
}

uint64_t hash_of(const std::string& text) {
  return wire::checksum(std::as_bytes(std::span(text)));
}

}  // namespace

// One tensor's contributions on their way to its result.
struct Reference::Sources {
  const TensorDesc* tensor = nullptr;
  double scale = 1;
  std::vector<std::vector<const std::byte*>> inputs;  // [machine]: of the present ranks, in order
  std::vector<Slots*> slots;                          // [machine], or null: no feedback
  std::vector<float> residual_scale;                  // [machine]
  std::vector<Bytes> results;                         // [machine]

  bool drains = false;  // residuals are added, and none is written

  bool writes(uint32_t machine) const { return slots[machine] != nullptr && !drains; }
  bool present(uint32_t machine) const { return !inputs[machine].empty(); }
  bool present_anywhere() const {
    return std::any_of(inputs.begin(), inputs.end(), [](const auto& i) { return !i.empty(); });
  }
  kernels::RawView view(uint32_t machine, const Slice& slice, std::vector<const void*>& ranks) {
    ranks.clear();
    for (const std::byte* input : inputs[machine]) {
      ranks.push_back(input + slice.first_element * dtype_bytes(tensor->dtype));
    }
    kernels::RawView view{.ranks = ranks.data(),
                          .rank_count = static_cast<uint32_t>(ranks.size()),
                          .dtype = tensor->dtype,
                          .scale = scale};
    if (slots[machine] != nullptr) {
      view.residual_in = slots[machine]->confirmed.data() + slice.first_element;
      view.residual_scale = residual_scale[machine];
    }
    return view;
  }
  void* target(uint32_t machine, const Slice& slice) {
    return results[machine].data() + slice.first_element * dtype_bytes(tensor->dtype);
  }
  float* residual_out(uint32_t machine, const Slice& slice) {
    Slots* const slot = slots[machine];
    return writes(machine) ? slot->tentative.data() + slice.first_element : nullptr;
  }
  // Where a result goes, for every kind of job that has one.
  template <class Job>
  Job job_into(uint32_t machine, const Segment& segment, const Slice& slice, void* const* targets) {
    Job job{.spec = segment.spec};
    job.elements = slice.elements;
    job.dtype = tensor->dtype;
    job.targets = targets;
    job.target_count = 1;
    if (!writes(machine)) return job;
    job.residual_in = slots[machine]->confirmed.data() + slice.first_element;
    job.residual_out = residual_out(machine, slice);
    job.residual_scale = residual_scale[machine];
    return job;
  }
};

// What is added to one sum, in order, with the memory it lies in.
struct Reference::Parts {
  std::vector<Contribution> all;
  std::deque<Bytes> bytes;
  std::deque<std::vector<float>> values;  // of what came with the codec of racks
  std::deque<const void*> places;
  std::vector<const void*> ranks;
};

namespace {

kernels::DrawKey key_of(const CodecSpec& spec, uint64_t job, uint64_t communicator, uint64_t name,
                        uint64_t step, uint32_t encoding, uint32_t machine, const Slice& slice) {
  const bool shared = kernels::find_codec(spec.codec)->shared_draws;
  return {kernels::draw_stream({.job_seed = job,
                                .communicator = communicator,
                                .tensor_name_hash = name,
                                .step = step,
                                .phase = shared ? 0 : encoding,
                                .site = shared ? 0 : machine}),
          slice.first_element / spec.bucket};
}

}  // namespace

Reference::Reference(std::vector<uint32_t> ranks_per_machine, const std::string& job,
                     const std::string& communicator)
    : shape_(std::move(ranks_per_machine)),
      job_hash_(hash_of(job)),
      communicator_hash_(hash_of(communicator)) {}

uint32_t Reference::ranks() const {
  return std::accumulate(shape_.begin(), shape_.end(), 0u);
}

Reference::Sources Reference::sources_of(const TensorDesc& tensor, const std::vector<Bytes>& inputs,
                                         const std::vector<bool>& present) const {
  Sources sources;
  sources.tensor = &tensor;
  if (tensor.op == ReduceOp::kAvg) {
    const double exact = 1.0 / ranks();
    sources.scale = tensor.dtype == DType::kF64 ? exact : static_cast<float>(exact);
  }
  uint32_t rank = 0;
  for (uint32_t machine = 0; machine < machines(); ++machine) {
    auto& local = sources.inputs.emplace_back();
    for (uint32_t i = 0; i < shape_[machine]; ++i, ++rank) {
      if (present[rank]) local.push_back(inputs[rank].data());
    }
    sources.slots.push_back(nullptr);
    sources.residual_scale.push_back(1.0f);
    sources.results.emplace_back(tensor.bytes());
  }
  return sources;
}

std::vector<Bytes> Reference::run(const TensorTable& table, const Step& step) {
  std::vector<Bytes> results(table.size());
  if (machines() == 1) {
    for (uint32_t t = 0; t < table.size(); ++t) {
      Sources sources = sources_of(table[t], step.inputs[t], step.present[t]);
      if (sources.present_anywhere()) results[t] = alone(table[t], sources);
    }
    return results;
  }
  const scheduler::Plan& plan = plans_.at(step.epoch);
  for (const Group& group : plan.groups) {
    std::vector<Sources> sources;
    for (const Segment& segment : group.segments) {
      const uint32_t t = segment.tensor;
      Sources& source = sources.emplace_back(sources_of(table[t], step.inputs[t], step.present[t]));
      if (!segment.spec.feedback()) {
        drain(t, source, plan.feedback_decay, step.units);
        continue;
      }
      std::vector<Slots>& slots = residuals_[t];
      slots.resize(machines());
      for (uint32_t k = 0; k < machines(); ++k) {
        slots[k].confirmed.resize(table[t].elements);
        slots[k].tentative.resize(table[t].elements);
        source.slots[k] = &slots[k];
        source.residual_scale[k] = scale_of(slots[k], plan.feedback_decay, step.units[k]);
        // Absent here: it keeps its residual, in this step's units.
        const uint64_t first = segment.first_element();
        const uint64_t end = first + scheduler::element_count(segment, table);
        for (uint64_t i = first; !source.present(k) && i < end; ++i) {
          slots[k].tentative[i] =
              kernels::rescaled(slots[k].confirmed[i], source.residual_scale[k]);
        }
        if (!source.present_anywhere()) continue;
        slots[k].written = true;
        slots[k].tentative_unit = step.units[k];
      }
    }
    exchange(group, table, plan.limits, sources, step.number);
    for (uint32_t s = 0; s < sources.size(); ++s) {
      if (!sources[s].present_anywhere()) continue;
      const Segment& segment = group.segments[s];
      const uint64_t width = dtype_bytes(table[segment.tensor].dtype);
      const auto from =
          sources[s].results[0].begin() + static_cast<int64_t>(segment.first_element() * width);
      Bytes& result = results[segment.tensor];
      result.resize(table[segment.tensor].bytes());
      std::copy_n(from, scheduler::segment_bytes(segment, table),
                  result.begin() + static_cast<int64_t>(segment.first_element() * width));
    }
  }
  return results;
}

float Reference::scale_of(const Slots& slots, float decay, double unit) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::min(kMost, static_cast<double>(decay) * (unit / slots.unit)));
}

// A tensor that has left feedback: who has it adds what it still holds, once.
void Reference::drain(uint32_t tensor, Sources& source, float decay,
                      const std::vector<double>& units) {
  source.drains = true;
  const auto found = residuals_.find(tensor);
  if (found == residuals_.end()) return;
  for (uint32_t k = 0; k < machines(); ++k) {
    Slots& slots = found->second[k];
    if (!slots.filled || !source.present(k)) continue;
    source.slots[k] = &slots;
    source.residual_scale[k] = scale_of(slots, decay, units[k]);
    slots.drained = true;
  }
}

void Reference::close(bool dropped) {
  for (auto& [tensor, slots] : residuals_) {
    for (Slots& slot : slots) {
      if (slot.written && !dropped) {
        std::swap(slot.confirmed, slot.tentative);
        slot.unit = slot.tentative_unit;
        slot.filled = true;
      }
      if (slot.drained && !dropped) slot = {};
      slot.written = slot.drained = false;
    }
  }
}

Bytes Reference::call(const TensorDesc& tensor, const std::vector<Bytes>& inputs) const {
  const TensorTable table = {tensor};
  Group group;
  group.segments.push_back({0, CodecSpec{.codec = 0, .bucket = 512}});
  std::vector<Sources> sources;
  sources.push_back(sources_of(table[0], inputs, std::vector<bool>(inputs.size(), true)));
  if (machines() == 1) return alone(table[0], sources[0]);
  group.way = scheduler::choose_way({.machines = machines()}, group, table);
  exchange(group, table, scheduler::PartLimits(), sources, 0);
  return std::move(sources[0].results[0]);
}

Bytes Reference::alone(const TensorDesc& tensor, Sources& source) const {
  std::vector<const void*> ranks;
  const Slice whole{.elements = tensor.elements};
  void* const target = source.results[0].data();
  lane().local_reduce({.source = source.view(0, whole, ranks),
                       .elements = tensor.elements,
                       .targets = &target,
                       .target_count = 1});
  return std::move(source.results[0]);
}

void Reference::exchange(const Group& group, const TensorTable& table,
                         const scheduler::PartLimits& limits, std::vector<Sources>& sources,
                         uint64_t step) const {
  const uint32_t shards = scheduler::Schedule::shards({.machines = machines(), .way = group.way});
  const GroupLayout layout = GroupLayout::create(group, table, shards, limits);
  switch (group.way.collective) {
    case scheduler::Collective::kScatter:
      return scatter(layout, group, sources, step);
    case scheduler::Collective::kAllgather:
      return allgather(layout, group, sources, step);
    case scheduler::Collective::kTwoLevel:
      if (!group.way.exact) return scatter(layout, group, sources, step);
      return two_level(layout, group, sources);
  }
}

// Every slice once: its owner reduces what its rack's machines encode for it and what their like in
// other racks make of theirs, and encodes the result. Without racks all machines are one.
void Reference::scatter(const GroupLayout& layout, const Group& group,
                        std::vector<Sources>& sources, uint64_t step) const {
  for (uint32_t owner = 0; owner < machines(); ++owner) {
    const scheduler::PartRange parts = layout.shard(owner);
    for (uint32_t part = parts.first; part < parts.end(); ++part) {
      for (const Slice& slice : layout.slices(layout.part(part))) {
        if (!sources[slice.segment].present_anywhere()) continue;
        reduce_slice(group, sources[slice.segment], {slice, owner, step});
      }
    }
  }
}

// What one machine of a rack adds: its own exactly, the others' as they encode it.
bool Reference::add_rack(const Group& group, Sources& source, const OfSlice& of, uint32_t adder,
                         Parts& parts) const {
  const Slice& slice = of.slice;
  const Segment& segment = group.segments[slice.segment];
  const uint32_t size = rack_size(group), first = adder / size * size;
  kernels::RangeStats stats;
  bool present = false;
  for (uint32_t k = first; k < first + size; ++k) {
    present = present || source.present(k);
    if (k == adder) {
      std::vector<const void*>& ranks = parts.ranks;
      parts.all.push_back(
          {.kind = Contribution::Kind::kRaw, .raw = source.view(k, slice, ranks), .encoded = {}});
      continue;
    }
    Contribution& part = parts.all.emplace_back();
    if (!source.present(k)) continue;
    const CodecSpec& spec = segment.rack_spec ? *segment.rack_spec : segment.spec;
    std::vector<const void*> ranks;
    Bytes& bytes = parts.bytes.emplace_back(
        kernels::encoded_bytes(spec, source.tensor->dtype, slice.elements));
    kernels::EncodeJob job{.spec = spec,
                           .source = source.view(k, slice, ranks),
                           .elements = slice.elements,
                           .key = key(spec, source, of, scheduler::kFirstEncoding, k),
                           .residual_out = source.residual_out(k, slice),
                           .encoded = bytes};
    bytes.resize(lane().encode(job, stats));
    part.kind = Contribution::Kind::kEncoded;
    part.encoded = bytes;
    if (segment.rack_spec) as_values(spec, slice, part, parts);
  }
  return present;
}

// What a machine decodes of it, to be added as it is.
void Reference::as_values(const CodecSpec& spec, const Slice& slice, Contribution& part,
                          Parts& parts) {
  std::vector<float>& values = parts.values.emplace_back(slice.elements);
  kernels::RangeStats stats;
  const Status decoded = lane().decode_add(
      {.spec = spec, .encoded = part.encoded, .elements = slice.elements, .sum = values.data()},
      stats);
  CGX_ASSERT(decoded.ok());
  const void*& place = parts.places.emplace_back(values.data());
  part = {.kind = Contribution::Kind::kRaw, .raw = {.ranks = &place, .rank_count = 1}};
}

kernels::DrawKey Reference::key(const CodecSpec& spec, const Sources& source, const OfSlice& of,
                                uint32_t encoding, uint32_t machine) const {
  return key_of(spec, job_hash_, communicator_hash_, source.tensor->name_hash(), of.step, encoding,
                machine, of.slice);
}

// The sum of the parts, as the machine encodes it: with a target, also its result.
Bytes Reference::reduced(const Group& group, Sources& source, const OfSlice& of, uint32_t machine,
                         const Parts& parts, bool result) const {
  kernels::RangeStats stats;
  void* target = source.target(machine, of.slice);
  auto job = source.job_into<kernels::ReduceJob>(machine, group.segments[of.slice.segment],
                                                 of.slice, &target);
  if (!result) job.target_count = 0, job.dtype = sum_dtype(job.dtype);
  Bytes sum(of.slice.range_bytes);
  job.contributions = parts.all;
  job.key = key(job.spec, source, of, scheduler::kSecondEncoding, machine);
  job.encoded = sum;
  const Result<uint64_t> used = lane().reduce(job, stats);
  CGX_ASSERT(used.ok());
  sum.resize(*used);
  return sum;
}

void Reference::reduce_slice(const Group& group, Sources& source, const OfSlice& of) const {
  const uint32_t size = rack_size(group), owner = of.owner;
  Parts parts;
  for (uint32_t adder = owner % size; adder < machines(); adder += size) {
    if (adder == owner) {
      add_rack(group, source, of, owner, parts);
      continue;
    }
    Parts theirs;
    if (!add_rack(group, source, of, adder, theirs)) {
      parts.all.emplace_back();
      continue;
    }
    const Bytes& sum =
        parts.bytes.emplace_back(reduced(group, source, of, adder, theirs, /*result=*/false));
    parts.all.push_back({.kind = Contribution::Kind::kEncoded, .raw = {}, .encoded = sum});
  }
  const Bytes result = reduced(group, source, of, owner, parts, /*result=*/true);
  kernels::RangeStats stats;
  for (uint32_t k = 0; k < machines(); ++k) {
    if (k == owner) continue;
    void* target = source.target(k, of.slice);
    auto decode =
        source.job_into<kernels::DecodeJob>(k, group.segments[of.slice.segment], of.slice, &target);
    decode.encoded = result;
    CGX_ASSERT(lane().decode(decode, stats).ok());
  }
}

uint32_t Reference::rack_size(const Group& group) const {
  const bool racks = group.way.collective == scheduler::Collective::kTwoLevel;
  return racks ? group.way.rack_machines : machines();
}

// Every slice of every machine once; all machines add all of them up.
void Reference::allgather(const GroupLayout& layout, const Group& group,
                          std::vector<Sources>& sources, uint64_t step) const {
  std::vector<const void*> ranks;
  kernels::RangeStats stats;
  const auto do_slice = [&](const Slice& slice) {
    Sources& source = sources[slice.segment];
    const Segment& segment = group.segments[slice.segment];
    if (!source.present_anywhere()) return;
    std::vector<Bytes> encoded(machines());
    std::vector<Contribution> parts(machines());
    for (uint32_t k = 0; k < machines(); ++k) {
      if (!source.present(k)) continue;
      encoded[k].resize(slice.range_bytes);
      kernels::EncodeJob job{
          .spec = segment.spec,
          .source = source.view(k, slice, ranks),
          .elements = slice.elements,
          .key = key_of(segment.spec, job_hash_, communicator_hash_, source.tensor->name_hash(),
                        step, scheduler::kFirstEncoding, k, slice),
          .residual_out = source.residual_out(k, slice),
          .encoded = encoded[k]};
      encoded[k].resize(lane().encode(job, stats));
      parts[k] = {.kind = Contribution::Kind::kEncoded, .encoded = encoded[k]};
    }
    for (uint32_t k = 0; k < machines(); ++k) {
      void* const target = source.target(k, slice);
      auto job = source.job_into<kernels::CombineJob>(k, segment, slice, &target);
      job.contributions = parts;
      CGX_ASSERT(lane().combine(job, stats).ok());
    }
  };
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    for (const Slice& slice : layout.slices(layout.part(part))) do_slice(slice);
  }
}

// The sum of every rack, and then of the racks.
void Reference::two_level(const GroupLayout& layout, const Group& group,
                          std::vector<Sources>& sources) const {
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    for (const Slice& slice : layout.slices(layout.part(part))) {
      Sources& source = sources[slice.segment];
      if (!source.present_anywhere()) continue;
      const Segment& segment = group.segments[slice.segment];
      std::vector<Bytes> sums;
      for (uint32_t first = 0; first < machines(); first += group.way.rack_machines) {
        sums.push_back(rack_sum(group, source, slice, first));
      }
      for (uint32_t k = 0; k < machines(); ++k) {
        sum_of(segment, source.tensor->dtype, slice, sums, source.target(k, slice));
      }
    }
  }
}

// Of what the machines from `first` on have; empty if none has the tensor.
Bytes Reference::rack_sum(const Group& group, Sources& source, const Slice& slice,
                          uint32_t first) const {
  const Segment& segment = group.segments[slice.segment];
  std::vector<const void*> ranks;
  kernels::RangeStats stats;
  std::vector<Bytes> parts;
  bool present = false;
  for (uint32_t k = first; k < first + group.way.rack_machines; ++k) {
    Bytes& bytes = parts.emplace_back();
    if (!source.present(k)) continue;
    present = true;
    bytes.resize(slice.range_bytes);
    lane().encode({.spec = segment.spec,
                   .source = source.view(k, slice, ranks),
                   .elements = slice.elements,
                   .encoded = bytes},
                  stats);
  }
  return present ? sum_of(segment, source.tensor->dtype, slice, parts, nullptr) : Bytes();
}

// Encoded parts, in order; empty ones are absent.
Bytes Reference::sum_of(const Segment& segment, DType dtype, const Slice& slice,
                        const std::vector<Bytes>& parts, void* target) const {
  std::vector<Contribution> contributions(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty() && slice.elements > 0) continue;
    contributions[i] = {.kind = Contribution::Kind::kEncoded, .encoded = parts[i]};
  }
  Bytes sum(slice.range_bytes);
  kernels::ReduceJob job{.spec = segment.spec, .contributions = contributions};
  job.elements = slice.elements;
  job.dtype = target == nullptr ? sum_dtype(dtype) : dtype;
  job.encoded = sum;
  job.targets = &target;
  job.target_count = target == nullptr ? 0 : 1;
  kernels::RangeStats stats;
  CGX_ASSERT(lane().reduce(job, stats).ok());
  return sum;
}

}  // namespace cgx::sim
