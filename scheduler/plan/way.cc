#include "scheduler/plan/way.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "kernels/codec.h"

namespace cgx::scheduler {
namespace {

struct Choice {
  Collective collective;
  WayReason reason;
};

// What the policy names; racks need machines outside of them.
Collective named(const WayQuestion& question) {
  const Collective collective = wished(question.wish);
  const bool one_rack = question.rack_machines == question.machines;
  return row_of(collective).in_racks && one_rack ? Collective::kScatter : collective;
}

constexpr const CollectiveRow* kRows[] = {
#define X(name, text, help) &kCollective_##text,
#include "scheduler/plan/schedules.def"
#undef X
};

// The first collective that goes in racks, where the GPUs of machines are such.
std::optional<Collective> in_racks_of_sites(const WayQuestion& question, const Group& group) {
  const bool are = question.sites_each > 1 && question.rack_machines == question.sites_each;
  for (size_t i = 0; are && i < std::size(kRows); ++i) {
    const Way way{.collective = static_cast<Collective>(i),
                  .rack_machines = question.rack_machines};
    if (!kRows[i]->in_racks) continue;
    const auto check = kRows[i]->check;
    if (check == nullptr || check(way, group, question.machines).ok()) return way.collective;
  }
  return std::nullopt;
}

Choice choose(const WayQuestion& question, const Group& group, const TensorTable& table) {
  if (question.machines == 1) return {Collective::kScatter, WayReason::kAlone};
  if (question.wish != CollectiveWish::kAuto) return {named(question), WayReason::kPolicy};
  uint64_t raw_bytes = 0;
  bool lossy = false, gathers = question.machines <= kGatherMachinesMax;
  for (const Segment& segment : group.segments) {
    if (segment.spec.codec == 0) {
      raw_bytes += segment_bytes(segment, table);
      continue;
    }
    lossy = true;
    gathers = gathers && kernels::find_codec(segment.spec.codec)->gathers;
  }
  if (!lossy && raw_bytes <= kOneTripBytesMax) return {Collective::kAllgather, WayReason::kOneTrip};
  if (const auto racks = in_racks_of_sites(question, group)) {
    return {*racks, WayReason::kFewerBetweenRacks};
  }
  if (lossy && gathers) return {Collective::kAllgather, WayReason::kGathersWell};
  return {Collective::kScatter, WayReason::kFewerBytes};
}

}  // namespace

const CollectiveRow& row_of(Collective collective) {
  return *kRows[static_cast<size_t>(collective)];
}

bool travels_raw(const Group& group) {
  return std::all_of(group.segments.begin(), group.segments.end(),
                     [](const Segment& segment) { return segment.spec.codec == 0; });
}

bool machines_vote(const Group& group) {
  return std::any_of(group.segments.begin(), group.segments.end(), [](const Segment& segment) {
    const kernels::CodecRow* const row = kernels::find_codec(segment.spec.codec);
    return row != nullptr && row->votes;
  });
}

uint64_t weight_of(const CodecSpec& spec) {
  return kernels::encoded_bytes(spec, DType::kF32, kSparseBucket);
}

bool goes_in_racks(const Way& way) {
  return collective_known(way.collective) && row_of(way.collective).in_racks && !way.exact;
}

std::optional<CodecSpec> rack_spec_of(const Policy& policy, const CodecSpec& spec) {
  if (!policy.rack_codec || spec.codec == 0) return std::nullopt;
  CodecSpec made = *policy.rack_codec;
  made.bucket = std::gcd(made.bucket, spec.bucket);  // both are multiples of the smallest one
  if (weight_of(made) <= weight_of(spec)) return std::nullopt;
  return made;
}

void set_rack_specs(const Policy& policy, Group& group) {
  const bool racks = goes_in_racks(group.way);
  for (Segment& segment : group.segments) {
    segment.rack_spec = racks ? rack_spec_of(policy, segment.spec) : std::nullopt;
  }
}

void fit_group(const Policy& policy, Group& group, uint32_t machines) {
  fit_way(group.way, group, machines);
  set_rack_specs(policy, group);
}

Status check_rack_codec(const CodecSpec& spec) {
  CGX_RETURN_IF_ERROR(kernels::validate(spec, DType::kF32));
  const kernels::CodecRow* const row = kernels::find_codec(spec.codec);
  const auto refuse = [&](const std::string& why) {
    return invalid_argument("rack_codec " + kernels::to_string(spec) + " " + why);
  };
  if (row->sparse) {
    return refuse("leaves values out; within a rack all of them travel: fp32, bf16, maxmin:8, ...");
  }
  if (!spec.feedback()) return {};
  return refuse("says feedback; its errors are kept where a tensor's own codec has feedback");
}

namespace {

// A part holds at least a bucket. With feedback the errors within racks are kept, too, which not
// every codec can take.
Status check_with(const CodecSpec& spec, const Policy& policy) {
  const std::optional<CodecSpec> in_rack = rack_spec_of(policy, spec);
  if (!in_rack) return {};
  const uint64_t bytes = kernels::encoded_bytes(*in_rack, DType::kF32, spec.bucket);
  if (bytes > PartLimits().encoded_bytes) {
    return invalid_argument(
        "rack_codec " + kernels::to_string(*in_rack) + " makes " + std::to_string(bytes) +
        " bytes of a bucket of " + kernels::to_string(spec) + ", a frame holds " +
        std::to_string(PartLimits().encoded_bytes) + "; bf16 or maxmin:8 make few enough");
  }
  if (!spec.feedback()) return {};
  CodecSpec kept = *in_rack;
  if (kept.codec == 0) return {};
  if (!kernels::find_codec(kept.codec)->has(CodecSpec::kFeedback)) {
    return invalid_argument("rack_codec " + kernels::to_string(kept) + " beside " +
                            kernels::to_string(spec) +
                            ", whose feedback keeps its errors: they grow without bound, because "
                            "its error may be larger than what it is given");
  }
  kept.flags |= CodecSpec::kFeedback;
  const Status status = kernels::check_policy(kept, nullptr);
  if (status.ok()) return {};
  return {status.code(), "rack_codec beside " + kernels::to_string(spec) +
                             ", whose feedback keeps its errors: " + status.message()};
}

}  // namespace

Status check_rack_codec(const Policy& policy, std::vector<std::string>& warnings,
                        std::span<const CodecSpec> also) {
  if (!policy.rack_codec) return {};
  CGX_RETURN_IF_ERROR(check_rack_codec(*policy.rack_codec));
  const std::string given = "rack_codec " + kernels::to_string(*policy.rack_codec);
  const bool by_auto = policy.collective == CollectiveWish::kAuto;
  if (!by_auto && !row_of(wished(policy.collective)).in_racks) {
    return invalid_argument(given + " with collective " + wish_name(policy.collective) +
                            ", which has no racks; two_level has, and auto where machines have "
                            "several GPUs each");
  }
  std::vector<CodecSpec> specs = policy.menu;
  specs.push_back(policy.default_codec);
  for (const PolicyRule& rule : policy.rules) specs.push_back(rule.codec);
  specs.insert(specs.end(), also.begin(), also.end());
  bool used = false;
  for (const CodecSpec& spec : specs) {
    CGX_RETURN_IF_ERROR(check_with(spec, policy));
    used = used || rack_spec_of(policy, spec).has_value();
  }
  if (!used) warnings.push_back(given + " compresses no less than the tensors' own codecs: unused");
  return {};
}

Way choose_way(const WayQuestion& question, const Group& group, const TensorTable& table) {
  const Choice choice = choose(question, group, table);
  Way way{.collective = choice.collective, .reason = choice.reason};
  if (row_of(way.collective).in_racks) way.rack_machines = question.rack_machines;
  fit_way(way, group, question.machines);
  return way;
}

void fit_way(Way& way, const Group& group, uint32_t machines) {
  if (row_of(way.collective).in_racks && machines_vote(group)) {
    way = {.collective = Collective::kScatter, .reason = way.reason};
  }
  const CollectiveRow& row = row_of(way.collective);
  way.ahead = static_cast<uint16_t>(row.ahead(machines, group));
  way.exact = row.in_racks && !group.segments.empty() && travels_raw(group);
}

PartLimits part_limits(uint64_t slab_bytes) {
  PartLimits limits;
  limits.encoded_bytes = std::min(limits.encoded_bytes, slab_bytes / 32 * 27);
  return limits;
}

Status check_way(const Way& way, const Group& group, uint32_t machines) {
  if (!collective_known(way.collective)) {
    return {StatusCode::kMISMATCH,
            "collective " + std::to_string(static_cast<uint32_t>(way.collective)) +
                " is not one that this daemon knows; install the same version of cgxd on all "
                "machines"};
  }
  if (way.ahead < 1 || way.ahead > kPartsAheadMax) {
    return invalid_argument("a group with " + std::to_string(way.ahead) +
                            " parts ahead; it may have 1.." + std::to_string(kPartsAheadMax));
  }
  const auto lacks = row_of(way.collective).check;
  return lacks != nullptr && machines > 1 ? lacks(way, group, machines) : Status();
}

}  // namespace cgx::scheduler
