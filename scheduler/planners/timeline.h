// How long a step takes under a plan, on paper: the lanes of one machine, group after group. Pure;
// a plan costs O(groups).
//
//   backprop  hands over the groups in plan order: ready := backprop + gap + stall
//   window    W operations at once, of which one takes a W-th of its trips:
//             start := max(ready, window)
//   daemon    arithmetic and frames, on one core: begin := max(start, daemon),
//             daemon := begin + work
//   link      what this machine sends; the first part leaves early:
//             link := free(begin + first) + bytes + pauses
//   end of the group: max(daemon, link + last) + trips; backprop := ready + share x work
//
// A part waits for everybody's frames, their sum and a trip. Meanwhile the link sends the parts
// ahead of it, and pauses for the rest, which other groups' frames may fill: from when the next
// group could be sent, none of the pauses that are left counts (`free`).
//
// The trainers lose `share` of the daemon's work. What is not in it: machines that differ, other
// jobs, congestion.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/planners/costs.h"

namespace cgx::scheduler {

// As multiples of a group's values, or of its encoded bytes.
struct Passes {
  double encodes = 0, decodes = 0;
  double sent = 0, received = 0;
};
// What a collective asks of one machine: counted in the schedule of the machine that is asked.
struct Travel : Passes {
  uint32_t shards = 1, trips = 0;
  Passes in_rack;                 // of all that, what has the codec of racks
  uint32_t waits = 0, ahead = 1;  // of a part: for everybody's frames; parts in flight
  Passes sums, rack_sums;         // of all that, what a part waits for then
};
Travel travel_of(const Way& way, uint32_t machines);

struct GroupLoad;
// A collective's, of groups without and with loss (fit_way).
struct Travels {
  Travel raw, lossy;
  const Travel& of(const GroupLoad& load) const;
};
Travels travels_of(const Way& way, uint32_t machines);

// What segments weigh, whichever way they go. Adds up.
struct GroupLoad {
  uint64_t segments = 0, lossy = 0;
  double encode_ns = 0, decode_ns = 0;  // of all values, once
  uint64_t raw_bytes = 0, encoded_bytes = 0;
  // The same with the codec of racks.
  double rack_encode_ns = 0, rack_decode_ns = 0;
  uint64_t rack_encoded_bytes = 0;

  GroupLoad& operator+=(const GroupLoad& other);
  GroupLoad minus(const GroupLoad& other) const;
};
// Of sums up to two places, what lies between.
Result<GroupLoad> load_of(const Segment& segment, const TensorTable& table, CurvesOf& curves_of);
Result<GroupLoad> load_of(const Segment& segment, const TensorTable& table,
                          const MachineCosts& costs);

// What the codecs take on that way: all of them, and those of racks alone.
double arithmetic_ns(const GroupLoad& load, const Travel& travel);
double rack_arithmetic_ns(const GroupLoad& load, const Travel& travel);
// Encoded bytes that one machine sends, and those that it sends and receives.
double bytes_sent(const GroupLoad& load, const Travel& travel);
double bytes_moved(const GroupLoad& load, const Travel& travel);

// What one group takes of each lane.
struct LaneTimes {
  double gap_ns = 0;    // since the group before it was ready, with idle cores
  double stall_ns = 0;  // work that the trainers do themselves before they hand it over
  double daemon_ns = 0;
  double first_ns = 0, last_ns = 0;  // of the daemon's work: before the first frame, after the last
  double link_ns = 0;
  double pauses_ns = 0;  // of the link, if no other group fills them
  double trips_ns = 0;
  double slot_ns = 0;  // of the window
  uint64_t sent_bytes = 0;
  double sent_frames = 0;
};
struct LaneRules {
  const Conditions& conditions;
  PartLimits limits;
  uint32_t window = 4;
};
LaneTimes times_of(const GroupLoad& load, const Travel& travel, const LaneRules& rules);

// When a group is where.
struct GroupSpan {
  double arrives_ns = 0;  // its last gradient's computation begins here less the gap
  double ready_ns = 0, start_ns = 0;
  double daemon_begin_ns = 0, daemon_end_ns = 0;
  double link_begin_ns = 0, link_end_ns = 0;
  double end_ns = 0;
};

// The state after some groups. Every lane only grows with every lane, so of two states that differ
// the one that is nowhere later is never worse.
struct Lanes {
  double backprop_ns = 0, window_ns = 0, daemon_ns = 0;
  // Of the last group: since when it is sent; until when, without pauses and with all of them.
  double link_from_ns = 0, link_ns = 0, link_alone_ns = 0;
  double end_ns = 0;   // of the last operation to end
  double work_ns = 0;  // of the daemon, in all

  GroupSpan advance(const LaneTimes& group, double share);
  // When the link is free for what could be sent from then on.
  double link_free_ns(double from_ns) const;
  bool link_nowhere_later(const Lanes& other) const;
  void nothing_before(double ns);  // nothing comes before then: no lane need be free earlier
  double step_ns() const { return end_ns > backprop_ns ? end_ns : backprop_ns; }
};

struct Timeline {
  std::vector<GroupSpan> groups;
  std::vector<LaneTimes> times;
  Lanes after;  // the last group
  uint64_t sent_bytes = 0;

  double step_ns() const { return after.step_ns(); }  // from the start of the backward pass
};
Timeline play(std::span<const LaneTimes> groups, double share);

// A plan as the timeline needs it, whatever the link: weighed once, played under many conditions.
struct WeighedPlan {
  std::vector<GroupLoad> loads;  // by group, like the others
  std::vector<Travel> travels;
  std::vector<double> gaps_ns;
  PartLimits limits;
  uint32_t window = 4;

  // The codecs' work takes so many times as long.
  WeighedPlan slower(double times) const;
};
// `arrival_ns`: by tensor, when its gradient is there if nobody disturbs the trainers.
Result<WeighedPlan> weigh(const Plan& plan, const TensorTable& table,
                          std::span<const double> arrival_ns, const MachineCosts& costs);
Lanes play(const WeighedPlan& plan, const Conditions& conditions);

Result<Timeline> timeline_of(const Plan& plan, const TensorTable& table,
                             std::span<const double> arrival_ns, const Conditions& conditions);

}  // namespace cgx::scheduler
