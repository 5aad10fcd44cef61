#include "scheduler/plan/plan.h"

#include <algorithm>

#include "kernels/codec.h"
#include "proto/wire/bytes.h"
#include "proto/wire/frame.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {

using wire::Reader;
using wire::Writer;

uint64_t TensorDesc::name_hash() const {
  return wire::checksum(std::as_bytes(std::span(name)));
}

uint64_t table_hash(const TensorTable& table) {
  return wire::checksum(encode_table(table));
}

std::vector<std::byte> encode_table(const TensorTable& table) {
  Writer writer;
  writer.put<uint32_t>(static_cast<uint32_t>(table.size()));
  for (const TensorDesc& tensor : table) {
    writer.put_string(tensor.name);
    writer.put(tensor.dtype);
    writer.put(tensor.op);
    writer.put(tensor.kind);
    writer.put(tensor.elements);
    writer.put<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
    for (uint64_t dim : tensor.shape) writer.put(dim);
  }
  return writer.take();
}

Result<TensorTable> decode_table(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  TensorTable table(reader.get_count(19));
  for (TensorDesc& tensor : table) {
    tensor.name = reader.get_string();
    tensor.dtype = reader.get<DType>();
    tensor.op = reader.get<ReduceOp>();
    tensor.kind = reader.get<wire::TensorKind>();
    tensor.elements = reader.get<uint64_t>();
    tensor.shape.resize(reader.get_count(8));
    for (uint64_t& dim : tensor.shape) dim = reader.get<uint64_t>();
  }
  if (!reader.done()) return protocol_error("tensor table does not decode exactly");
  return table;
}

namespace {

std::string describe(const TensorDesc& tensor) {
  std::string text = tensor.name + " " + std::string(dtype_name(tensor.dtype)) + "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    text += (i ? "," : "") + std::to_string(tensor.shape[i]);
  }
  return text + "] (" + std::to_string(tensor.elements) + " elements, " +
         std::string(reduce_op_name(tensor.op)) + ")";
}

}  // namespace

std::string first_difference(const TensorTable& ours, const std::string& our_name,
                             const TensorTable& theirs, const std::string& their_name) {
  const size_t common = std::min(ours.size(), theirs.size());
  for (size_t i = 0; i < common; ++i) {
    if (ours[i] == theirs[i]) continue;
    return "tensor " + std::to_string(i) + ": " + our_name + " has " + describe(ours[i]) + ", " +
           their_name + " has " + describe(theirs[i]);
  }
  if (ours.size() == theirs.size()) return {};
  const bool we_have_more = ours.size() > theirs.size();
  return (we_have_more ? our_name : their_name) + " registered " +
         std::to_string(std::max(ours.size(), theirs.size())) + " tensors, " +
         (we_have_more ? their_name : our_name) + " only " + std::to_string(common) +
         "; the first extra one is " + describe(we_have_more ? ours[common] : theirs[common]);
}

std::vector<std::byte> encode_plan(const Plan& plan) {
  Writer writer;
  writer.put(plan.epoch);
  writer.put(plan.form);
  writer.put(plan.machines);
  writer.put(plan.codec_formats);
  writer.put(plan.table_hash);
  writer.put(plan.policy_version);
  writer.put(plan.window);
  writer.put(plan.weight);
  writer.put(plan.replica_check_steps);
  writer.put(plan.feedback_decay);
  writer.put(plan.stats_steps);
  writer.put(plan.limits.raw_bytes);
  writer.put(plan.limits.encoded_bytes);
  writer.put(plan.trial.against);
  writer.put(plan.trial.block);
  writer.put(plan.trial.pairs);
  writer.put<uint32_t>(static_cast<uint32_t>(plan.groups.size()));
  for (const Group& group : plan.groups) {
    writer.put(group.way.collective);
    writer.put(group.way.reason);
    writer.put(group.way.ahead);
    writer.put(group.way.rack_machines);
    writer.put<uint8_t>(group.way.exact ? 1 : 0);
    writer.put<uint32_t>(static_cast<uint32_t>(group.segments.size()));
    for (const Segment& segment : group.segments) {
      writer.put(segment.tensor);
      writer.put(segment.spec);
      writer.put(segment.first_bucket);
      writer.put(segment.buckets);
      writer.put<uint8_t>(segment.rack_spec ? 1 : 0);
      if (segment.rack_spec) writer.put(*segment.rack_spec);
    }
  }
  return writer.take();
}

Result<uint64_t> epoch_of(std::span<const std::byte> encoded_plan) {
  Reader reader(encoded_plan);
  const auto epoch = reader.get<uint64_t>();
  if (!reader.ok()) return protocol_error("a plan without an epoch");
  return epoch;
}

namespace {

Status other_form(const Plan& plan) {
  return {StatusCode::kMISMATCH, "plan of epoch " + std::to_string(plan.epoch) + " has form " +
                                     std::to_string(plan.form) + ", this daemon reads form " +
                                     std::to_string(kPlanForm) +
                                     "; install the same version of cgxd on all machines"};
}

}  // namespace

Result<Plan> decode_plan(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Plan plan;
  plan.epoch = reader.get<uint64_t>();
  plan.form = reader.get<uint32_t>();
  if (reader.ok() && plan.form != kPlanForm) return other_form(plan);
  plan.machines = reader.get<uint32_t>();
  plan.codec_formats = reader.get<uint64_t>();
  plan.table_hash = reader.get<uint64_t>();
  plan.policy_version = reader.get<uint64_t>();
  plan.window = reader.get<uint32_t>();
  plan.weight = reader.get<uint32_t>();
  plan.replica_check_steps = reader.get<uint32_t>();
  plan.feedback_decay = reader.get<float>();
  plan.stats_steps = reader.get<uint32_t>();
  plan.limits.raw_bytes = reader.get<uint64_t>();
  plan.limits.encoded_bytes = reader.get<uint64_t>();
  plan.trial.against = reader.get<uint64_t>();
  plan.trial.block = reader.get<uint32_t>();
  plan.trial.pairs = reader.get<uint32_t>();
  plan.groups.resize(reader.get_count(12));
  for (Group& group : plan.groups) {
    group.way.collective = reader.get<Collective>();
    group.way.reason = reader.get<WayReason>();
    group.way.ahead = reader.get<uint16_t>();
    group.way.rack_machines = reader.get<uint32_t>();
    group.way.exact = reader.get<uint8_t>() != 0;
    group.segments.resize(reader.get_count(sizeof(uint32_t) + sizeof(CodecSpec) + 17));
    for (Segment& segment : group.segments) {
      segment.tensor = reader.get<uint32_t>();
      segment.spec = reader.get<CodecSpec>();
      segment.first_bucket = reader.get<uint64_t>();
      segment.buckets = reader.get<uint64_t>();
      if (reader.get<uint8_t>() != 0) segment.rack_spec = reader.get<CodecSpec>();
    }
  }
  if (!reader.done()) return protocol_error("plan does not decode exactly");
  return plan;
}

uint64_t Plan::hash() const {
  return wire::checksum(encode_plan(*this));
}

uint64_t bucket_count(const Segment& segment, const TensorTable& table) {
  const uint64_t all =
      (table[segment.tensor].elements + segment.spec.bucket - 1) / segment.spec.bucket;
  return std::min(segment.buckets, all - std::min(all, segment.first_bucket));
}

uint64_t element_count(const Segment& segment, const TensorTable& table) {
  const uint64_t rest = table[segment.tensor].elements - segment.first_element();
  return std::min(rest, bucket_count(segment, table) * segment.spec.bucket);
}

uint64_t segment_bytes(const Segment& segment, const TensorTable& table) {
  return element_count(segment, table) * dtype_bytes(table[segment.tensor].dtype);
}

namespace {

// Segments of one tensor, by their first bucket: they follow each other without gap or overlap.
Status check_segments(std::vector<const Segment*>& segments, const TensorDesc& tensor) {
  const auto wrong = [&](const std::string& why) {
    return invalid_argument("plan: the segments of tensor '" + tensor.name + "' " + why);
  };
  std::sort(segments.begin(), segments.end(), [](const Segment* one, const Segment* other) {
    return one->first_bucket < other->first_bucket;
  });
  const CodecSpec& spec = segments.front()->spec;
  const uint64_t all = (tensor.elements + spec.bucket - 1) / spec.bucket;
  uint64_t next = 0;
  for (const Segment* segment : segments) {
    const bool same = segment->spec == spec && segment->rack_spec == segments.front()->rack_spec;
    if (!same) return wrong("differ in their codecs");
    if (segment->first_bucket != next || (next == all && next != 0)) {
      return wrong("overlap, leave a gap or go beyond its end at bucket " + std::to_string(next));
    }
    const uint64_t left = all - next;
    const bool to_the_end = segment->buckets == Segment::kToTheEnd;
    if (!to_the_end && (segment->buckets == 0 || segment->buckets > left)) {
      return wrong("hold no bucket, or more than there are, from bucket " + std::to_string(next));
    }
    next += to_the_end ? left : segment->buckets;
  }
  return next == all ? Status() : wrong("end before it does");
}

Status check_rack_spec(const Way& way, const Segment& segment, const TensorDesc& tensor) {
  if (!segment.rack_spec) return {};
  const CodecSpec& spec = *segment.rack_spec;
  const auto wrong = [&](const std::string& why) {
    return invalid_argument("plan: tensor '" + tensor.name + "' travels within racks as " +
                            kernels::to_string(spec) + ", " + why);
  };
  if (!goes_in_racks(way) || segment.spec.codec == 0) {
    return wrong("but its group has no racks that lose anything");
  }
  CGX_RETURN_IF_ERROR(check_rack_codec(spec));
  if (segment.spec.bucket % spec.bucket == 0) return {};
  return wrong("whose buckets do not divide those of " + kernels::to_string(segment.spec));
}

// Before anything else reads what it says.
Status check_codecs_of(const Group& group, const TensorTable& table) {
  for (const Segment& segment : group.segments) {
    if (segment.tensor >= table.size()) {
      return invalid_argument("plan names tensor " + std::to_string(segment.tensor) +
                              ", which is not in a table of " + std::to_string(table.size()));
    }
    const DType dtype = table[segment.tensor].dtype;
    CGX_RETURN_IF_ERROR(kernels::validate(segment.spec, dtype));
    if (segment.rack_spec) CGX_RETURN_IF_ERROR(kernels::validate(*segment.rack_spec, dtype));
  }
  return {};
}

}  // namespace

Status check_plan(const Plan& plan, const TensorTable& table) {
  if (plan.codec_formats != kernels::codec_formats()) {
    return {StatusCode::kMISMATCH,
            "plan of epoch " + std::to_string(plan.epoch) +
                " was made by a daemon whose codecs write other formats; install the same version "
                "of cgxd on all machines"};
  }
  if (plan.table_hash != table_hash(table)) {
    return {StatusCode::kMISMATCH,
            "plan of epoch " + std::to_string(plan.epoch) + " was made for another tensor table"};
  }
  if (plan.window < 1 || plan.window > 64) {
    return invalid_argument("plan window " + std::to_string(plan.window) + " is not in 1..64");
  }
  if (plan.weight < 1 || plan.weight > 1000) {
    return invalid_argument("plan weight " + std::to_string(plan.weight) + " is not in 1..1000");
  }
  if (plan.limits.raw_bytes < kPartBytesMin || plan.limits.encoded_bytes < kPartBytesMin) {
    return invalid_argument("plan whose parts may hold " + std::to_string(plan.limits.raw_bytes) +
                            " bytes, encoded " + std::to_string(plan.limits.encoded_bytes) +
                            ": fewer than " + std::to_string(kPartBytesMin) +
                            ", so that its layout would take more memory than its tensors");
  }
  if (!(plan.feedback_decay > 0.0f && plan.feedback_decay <= 1.0f)) {
    return invalid_argument("plan feedback_decay " + std::to_string(plan.feedback_decay) +
                            " is not above 0 and at most 1");
  }
  const bool sound_trial = plan.trial.block >= 1 && plan.trial.block <= kTrialBlockMax &&
                           plan.trial.pairs >= 1 && plan.trial.pairs <= kTrialPairsMax;
  if (plan.trial.on() && !sound_trial) {
    return invalid_argument("plan on trial in " + std::to_string(plan.trial.pairs) + " pairs of " +
                            std::to_string(plan.trial.block) + " steps");
  }
  std::vector<std::vector<const Segment*>> of_tensor(table.size());
  for (const Group& group : plan.groups) {
    if (group.segments.empty()) return invalid_argument("plan holds an empty group");
    CGX_RETURN_IF_ERROR(check_codecs_of(group, table));
    CGX_RETURN_IF_ERROR(check_way(group.way, group, plan.machines));
    for (const Segment& segment : group.segments) {
      CGX_RETURN_IF_ERROR(check_rack_spec(group.way, segment, table[segment.tensor]));
      of_tensor[segment.tensor].push_back(&segment);
    }
  }
  for (size_t t = 0; t < table.size(); ++t) {
    if (of_tensor[t].empty()) {
      return invalid_argument("plan does not hold tensor '" + table[t].name + "'");
    }
    CGX_RETURN_IF_ERROR(check_segments(of_tensor[t], table[t]));
  }
  return {};
}

}  // namespace cgx::scheduler
