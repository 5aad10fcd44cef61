// Which way suits a group, and why. The planner asks, and whoever starts a call; what they chose
// stands in the plan or in the call's descriptor, so that machines never decide differently.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

// Up to here a group without loss takes one trip: time on the wire matters less than a second trip.
constexpr uint64_t kOneTripBytesMax = 32 * 1024;
// Up to so many machines codecs that gather well do so: each machine sends (M-1) times its encoded
// bytes instead of 2(M-1)/M times, which for their few bits costs less than the second trip, and
// the values are encoded once instead of twice.
constexpr uint32_t kGatherMachinesMax = 4;

struct WayQuestion {
  CollectiveWish wish = CollectiveWish::kAuto;
  uint32_t machines = 1;
  uint32_t rack_machines = 0;  // of the policy
  uint32_t sites_each = 0;     // machines that share a daemon (View); 0: none do
};
// With several GPUs on each of several machines auto goes in racks: between machines that moves
// 1/GPUs of what scatter would. What is so small that one trip suits it stays with that.
Way choose_way(const WayQuestion& question, const Group& group, const TensorTable& table);
// What of a way depends on what is in the group; where machines vote it does not go in racks.
void fit_way(Way& way, const Group& group, uint32_t machines);

// Parts in flight: about the same bytes whatever the number of machines. Scatter: per peer without
// an answer.
constexpr uint32_t scatter_parts(uint32_t machines) {
  return machines <= 2 ? 8 : machines <= 8 ? 8 / (machines - 1) + 1 : 1;
}
// Parts without loss are as large as frames may be: with eight of them and the results on their way
// a slab has left the core's cache before its turn comes again.
constexpr uint32_t raw_scatter_parts(uint32_t machines) {
  return std::min(3u, scatter_parts(machines));
}
// Allgather: own parts encoded beyond the lowest that is not combined. Combining needs everybody's
// part, so a machine sends at most one window beyond what a peer has encoded, which, among more
// than two machines, may itself be one window beyond what that peer has combined.
constexpr uint32_t gather_parts(uint32_t machines) {
  return machines <= 2 ? scatter_parts(machines) : (scatter_parts(machines) + 1) / 2;
}

// Parts are so small that their frames fit a slab, with what stands before the values.
PartLimits part_limits(uint64_t slab_bytes);

// What a row of schedules.def is: schedule_<text>.cc fills it in.
class GroupLayout;
class Schedule;
struct Setting;
struct CollectiveRow {
  uint32_t (*ahead)(uint32_t machines, const Group& group) = nullptr;  // parts in flight
  // What the way lacks among two or more machines; null: nothing.
  Status (*check)(const Way& way, const Group& group, uint32_t machines) = nullptr;
  bool in_racks = false;  // a way has the policy's rack_machines
  uint32_t (*shards)(const Setting& setting) = nullptr;
  // Writes the courses of one machine's parts; among two or more machines.
  void (*make)(const Setting& setting, const GroupLayout& layout, Schedule& schedule) = nullptr;
};
#define X(name, text, help) extern const CollectiveRow kCollective_##text;
#include "scheduler/plan/schedules.def"
#undef X
const CollectiveRow& row_of(Collective collective);  // REQUIRES: collective_known()

bool travels_raw(const Group& group);
// Some tensor of it has a codec whose sums are votes: what a rack adds up is no contribution then.
bool machines_vote(const Group& group);

// Machines send what they add within racks with a codec of its own, if the policy has one.
bool goes_in_racks(const Way& way);
// That codec for a tensor with this one; nothing: the same, since it would not be the weaker one.
std::optional<CodecSpec> rack_spec_of(const Policy& policy, const CodecSpec& spec);
// That of each segment, as the group's way wants it.
void set_rack_specs(const Policy& policy, Group& group);
// fit_way(), then the codecs that go with it.
void fit_group(const Policy& policy, Group& group, uint32_t machines);
// What may be one: all values are sent, and the other codec says whether errors are kept.
Status check_rack_codec(const CodecSpec& spec);
// The policy's, with each codec of its own and those that its ceilings may choose: that its ways
// have racks, and what is doubtful.
Status check_rack_codec(const Policy& policy, std::vector<std::string>& warnings,
                        std::span<const CodecSpec> also = {});
// Bytes of many values: of two codecs the heavier one loses less.
uint64_t weight_of(const CodecSpec& spec);

// An error names what the way lacks.
Status check_way(const Way& way, const Group& group, uint32_t machines);

}  // namespace cgx::scheduler
