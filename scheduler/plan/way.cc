#include "scheduler/plan/way.h"

#include <algorithm>
#include <iterator>
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

Way choose_way(const WayQuestion& question, const Group& group, const TensorTable& table) {
  const Choice choice = choose(question, group, table);
  Way way{.collective = choice.collective, .reason = choice.reason};
  const CollectiveRow& row = row_of(choice.collective);
  way.ahead = static_cast<uint16_t>(row.ahead(question.machines, group));
  if (row.in_racks) {
    way.rack_machines = question.rack_machines;
    way.exact = !group.segments.empty() && travels_raw(group);
  }
  return way;
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
