#include "proto/wire/machine_profile.h"

#include <cmath>
#include <string>
#include <utility>

#include "proto/wire/bytes.h"

namespace cgx::wire {
namespace {

constexpr uint8_t kProfileVersion = 1;
constexpr size_t kCodecBytes = sizeof(CodecSpec) + 4 * sizeof(float);
constexpr size_t kPlanBytes = sizeof(uint64_t) + 5 * sizeof(float);
constexpr size_t kHeadBytes = sizeof(uint8_t) + 7 * sizeof(float) + 2 * sizeof(uint32_t);
static_assert(kHeadBytes + MachineProfile::kCodecsMax * kCodecBytes +
                  MachineProfile::kPlansMax * kPlanBytes <=
              MachineProfile::kBytesMax);

struct Out {
  Writer writer;
  template <typename T>
  void operator()(const T& value) {
    writer.put(value);
  }
  template <typename T, typename Each>
  void list(const std::vector<T>& values, size_t, size_t, Each each) {
    writer.put<uint32_t>(static_cast<uint32_t>(values.size()));
    for (const T& value : values) each(*this, value);
  }
};

struct In {
  Reader reader;
  bool sound = true;  // every number and list so far
  void operator()(float& value) {
    value = reader.get<float>();
    sound = sound && std::isfinite(value) && value >= 0 && value <= MachineProfile::kMostNs;
  }
  void operator()(uint64_t& value) { value = reader.get<uint64_t>(); }
  void operator()(CodecSpec& spec) {
    spec = reader.get<CodecSpec>();
    sound = sound && std::isfinite(spec.amount);
  }
  template <typename T, typename Each>
  void list(std::vector<T>& values, size_t entry_bytes, size_t entries_max, Each each) {
    const uint32_t count = reader.get_count(entry_bytes);
    sound = sound && count <= entries_max;
    values.resize(sound ? count : 0);
    for (T& value : values) each(*this, value);
  }
};

// Names the fields once for both directions.
template <typename Io, typename Profile>
void visit(Io& io, Profile& profile) {
  for (auto* cost :
       {&profile.operation_ns, &profile.segment_ns, &profile.frame_ns, &profile.copy_ns_per_byte,
        &profile.wire_ns_per_byte, &profile.trip_ns, &profile.share}) {
    io(*cost);
  }
  io.list(profile.codecs, kCodecBytes, MachineProfile::kCodecsMax, [](Io& each, auto& codec) {
    each(codec.spec);
    for (auto* curve : {&codec.encode, &codec.decode}) {
      each(curve->floor_ns);
      each(curve->ns_per_byte);
    }
  });
  io.list(profile.plans, kPlanBytes, MachineProfile::kPlansMax, [](Io& each, auto& plan) {
    each(plan.epoch);
    for (auto* time :
         {&plan.step_ns, &plan.last_ns, &plan.between_ns, &plan.arithmetic_ns, &plan.busy_ns}) {
      each(*time);
    }
  });
}

}  // namespace

std::vector<std::byte> encode_profile(const MachineProfile& profile) {
  CGX_ASSERT(profile.codecs.size() <= MachineProfile::kCodecsMax);
  CGX_ASSERT(profile.plans.size() <= MachineProfile::kPlansMax);
  Out out;
  out(kProfileVersion);
  visit(out, profile);
  return out.writer.take();
}

Result<MachineProfile> decode_profile(std::span<const std::byte> bytes) {
  In in{Reader(bytes)};
  const auto version = in.reader.get<uint8_t>();
  if (in.reader.ok() && version != kProfileVersion) {
    return Status(StatusCode::kVERSION_MISMATCH, "a profile of version " + std::to_string(version) +
                                                     ", this daemon reads " +
                                                     std::to_string(kProfileVersion));
  }
  MachineProfile profile;
  visit(in, profile);
  if (!in.reader.done()) return protocol_error("a profile that does not decode exactly");
  if (!in.sound || profile.share > 1) {
    return protocol_error("a profile with a number or a count that cannot be");
  }
  return profile;
}

}  // namespace cgx::wire
