#include "scheduler/planners/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "scheduler/exchange/layout.h"
#include "scheduler/exchange/schedule.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kBucket = 512;

// One bucket for each shard: every part of the layout is a shard.
Schedule one_part_each(const Setting& setting) {
  const TensorTable table = {
      {.name = "one part each", .elements = uint64_t{kBucket} * Schedule::shards(setting)}};
  const Group group{{{0, CodecSpec{.codec = 0, .bucket = kBucket}}}, setting.way};
  return Schedule::create(setting,
                          GroupLayout::create(group, table, Schedule::shards(setting), {}));
}

void count(const Move& move, double share, Travel& travel) {
  const auto machines = static_cast<double>(move.machines.size());
  const auto own = [](const Source& source) { return source.kind == Source::Kind::kOwnRanks; };
  const auto read =
      static_cast<double>(move.sources.size()) -
      static_cast<double>(std::count_if(move.sources.begin(), move.sources.end(), own));
  switch (move.kind) {
    case MoveKind::kEncode:
      travel.encodes += share;
      break;
    case MoveKind::kSend:
    case MoveKind::kForward:
      travel.sent += share * machines;
      break;
    case MoveKind::kReceive:
      travel.received += share * machines;
      break;
    case MoveKind::kReduce:
      travel.encodes += share;
      travel.decodes += share * (read + (move.results ? 1 : 0));
      break;
    case MoveKind::kCombine:
    case MoveKind::kDecode:
      travel.decodes += share * read;
      break;
    case MoveKind::kLocalReduce:
      break;  // one rank's values stay where they are
  }
}

double parts_of_shard(const GroupLoad& load, uint32_t shards, const PartLimits& limits) {
  const auto filled = [&](uint64_t bytes, uint64_t limit) {
    return std::ceil(static_cast<double>(bytes) / shards / static_cast<double>(limit));
  };
  return std::max({1.0, filled(load.raw_bytes, limits.raw_bytes),
                   filled(load.encoded_bytes, limits.encoded_bytes)});
}

}  // namespace

Travel travel_of(const Way& way, uint32_t machines) {
  const Setting setting{0, machines, way};
  const Schedule schedule = one_part_each(setting);
  Travel travel{.shards = Schedule::shards(setting), .trips = schedule.rounds()};
  for (const Schedule::Leg& leg : schedule.legs()) {
    const double share = static_cast<double>(leg.parts.count) / schedule.parts();
    for (const Move& move : leg.course.moves()) count(move, share, travel);
  }
  return travel;
}

GroupLoad& GroupLoad::operator+=(const GroupLoad& other) {
  segments += other.segments;
  encode_ns += other.encode_ns;
  decode_ns += other.decode_ns;
  raw_bytes += other.raw_bytes;
  encoded_bytes += other.encoded_bytes;
  return *this;
}

GroupLoad GroupLoad::minus(const GroupLoad& other) const {
  return {segments - other.segments, encode_ns - other.encode_ns, decode_ns - other.decode_ns,
          raw_bytes - other.raw_bytes, encoded_bytes - other.encoded_bytes};
}

Result<GroupLoad> load_of(const Segment& segment, const TensorTable& table,
                          const MachineCosts& costs) {
  CGX_ASSIGN_OR_RETURN(const CodecCurves curves, costs.curves_of(segment.spec));
  const uint64_t elements = element_count(segment, table);
  const auto computed = 4 * static_cast<double>(elements);  // sums run in fp32
  return GroupLoad{.segments = 1,
                   .encode_ns = curves.encode.ns(computed),
                   .decode_ns = curves.decode.ns(computed),
                   .raw_bytes = segment_bytes(segment, table),
                   .encoded_bytes = align_range(kernels::encoded_bytes(
                       segment.spec, table[segment.tensor].dtype, elements))};
}

LaneTimes times_of(const GroupLoad& load, const Travel& travel, const LaneRules& rules) {
  const MachineCosts& costs = rules.conditions.costs;
  const Link& link = rules.conditions.link;
  const double parts = parts_of_shard(load, travel.shards, rules.limits) * travel.shards;
  const auto bytes_of = [&](double frames) {
    return frames *
           (static_cast<double>(load.encoded_bytes) + parts * double{sizeof(wire::FrameHeader)});
  };
  LaneTimes times;
  times.daemon_ns = costs.operation_ns + costs.segment_ns * static_cast<double>(load.segments) +
                    travel.encodes * load.encode_ns + travel.decodes * load.decode_ns +
                    costs.frame_ns * parts * (travel.sent + travel.received) +
                    costs.wire_ns_per_byte * bytes_of(travel.sent + travel.received);
  times.first_ns = times.last_ns = times.daemon_ns / (2 * parts);
  times.sent_bytes = static_cast<uint64_t>(bytes_of(travel.sent));
  times.sent_frames = parts * travel.sent;
  times.link_ns = link.ns_per_byte * bytes_of(travel.sent);
  times.trips_ns = link.trip_ns * travel.trips;
  times.slot_ns = times.trips_ns / rules.window;
  return times;
}

GroupSpan Lanes::advance(const LaneTimes& group, double share) {
  GroupSpan span;
  span.arrives_ns = backprop_ns;
  span.ready_ns = backprop_ns + group.gap_ns + group.stall_ns;
  span.start_ns = std::max(span.ready_ns, window_ns);
  span.daemon_begin_ns = std::max(span.start_ns, daemon_ns);
  span.daemon_end_ns = span.daemon_begin_ns + group.daemon_ns;
  span.link_begin_ns = std::max(span.daemon_begin_ns + group.first_ns, link_ns);
  span.link_end_ns = span.link_begin_ns + group.link_ns;
  span.end_ns = std::max(span.daemon_end_ns, span.link_end_ns + group.last_ns) + group.trips_ns;

  backprop_ns = span.ready_ns + share * group.daemon_ns;
  window_ns = span.start_ns + group.slot_ns;
  daemon_ns = span.daemon_end_ns;
  link_ns = span.link_end_ns;
  end_ns = std::max(end_ns, span.end_ns);
  work_ns += group.daemon_ns;
  return span;
}

Timeline play(std::span<const LaneTimes> groups, double share) {
  Timeline timeline;
  timeline.times.assign(groups.begin(), groups.end());
  for (const LaneTimes& group : groups) {
    timeline.groups.push_back(timeline.after.advance(group, share));
    timeline.sent_bytes += group.sent_bytes;
  }
  return timeline;
}

WeighedPlan WeighedPlan::slower(double times) const {
  WeighedPlan slowed = *this;
  for (GroupLoad& load : slowed.loads) {
    load.encode_ns *= times;
    load.decode_ns *= times;
  }
  return slowed;
}

Result<WeighedPlan> weigh(const Plan& plan, const TensorTable& table,
                          std::span<const double> arrival_ns, const MachineCosts& costs) {
  WeighedPlan weighed{
      .loads = {}, .travels = {}, .gaps_ns = {}, .limits = plan.limits, .window = plan.window};
  std::map<std::tuple<Collective, uint32_t, bool>, Travel> travels;  // what of a way matters here
  double last_ns = 0;
  for (const Group& group : plan.groups) {
    GroupLoad load;
    double arrival = last_ns;
    for (const Segment& segment : group.segments) {
      CGX_ASSIGN_OR_RETURN(const GroupLoad more, load_of(segment, table, costs));
      load += more;
      arrival = std::max(arrival, arrival_ns[segment.tensor]);
    }
    const auto [found, added] =
        travels.try_emplace({group.way.collective, group.way.rack_machines, group.way.exact});
    if (added) found->second = travel_of(group.way, plan.machines);
    weighed.loads.push_back(load);
    weighed.travels.push_back(found->second);
    weighed.gaps_ns.push_back(arrival - last_ns);
    last_ns = arrival;
  }
  return weighed;
}

namespace {

LaneTimes times_of_group(const WeighedPlan& plan, size_t group, const Conditions& conditions) {
  LaneTimes times =
      times_of(plan.loads[group], plan.travels[group], {conditions, plan.limits, plan.window});
  times.gap_ns = plan.gaps_ns[group];
  return times;
}

}  // namespace

Lanes play(const WeighedPlan& plan, const Conditions& conditions) {
  Lanes lanes;
  for (size_t g = 0; g < plan.loads.size(); ++g) {
    lanes.advance(times_of_group(plan, g, conditions), conditions.share);
  }
  return lanes;
}

Result<Timeline> timeline_of(const Plan& plan, const TensorTable& table,
                             std::span<const double> arrival_ns, const Conditions& conditions) {
  CGX_ASSIGN_OR_RETURN(const WeighedPlan weighed, weigh(plan, table, arrival_ns, conditions.costs));
  std::vector<LaneTimes> groups;
  for (size_t g = 0; g < weighed.loads.size(); ++g) {
    groups.push_back(times_of_group(weighed, g, conditions));
  }
  return play(groups, conditions.share);
}

}  // namespace cgx::scheduler
