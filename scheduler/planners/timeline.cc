#include "scheduler/planners/timeline.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "scheduler/exchange/layout.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/plan/way.h"

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
  const auto counted = [&](auto which) {
    return static_cast<double>(std::count_if(move.sources.begin(), move.sources.end(), which));
  };
  const double read =
      counted([](const Source& source) { return source.kind != Source::Kind::kOwnRanks; });
  Passes none;
  Passes& in_rack = move.in_rack ? travel.in_rack : none;
  switch (move.kind) {
    case MoveKind::kEncode:
      travel.encodes += share;
      in_rack.encodes += share;
      break;
    case MoveKind::kSend:
    case MoveKind::kForward:
      travel.sent += share * machines;
      in_rack.sent += share * machines;
      break;
    case MoveKind::kReceive:
      travel.received += share * machines;
      in_rack.received += share * machines;
      break;
    case MoveKind::kReduce: {
      const double near = counted([](const Source& source) { return source.in_rack; });
      const double decodes = read + (move.results ? 1 : 0);
      travel.in_rack.decodes += share * near;
      travel.encodes += share;
      travel.decodes += share * decodes;
      travel.rack_sums.decodes += share * near;
      travel.sums.encodes += share;
      travel.sums.decodes += share * decodes;
      break;
    }
    case MoveKind::kCombine:
      travel.sums.decodes += share * read;
      travel.decodes += share * read;
      break;
    case MoveKind::kDecode:
      travel.decodes += share * read;
      break;
    case MoveKind::kLocalReduce:
      break;  // one rank's values stay where they are
  }
}

// The last round whose frames a sum waits for; 0: the move is none.
uint32_t awaited_round(const Course& course, const Move& sum) {
  if (sum.kind != MoveKind::kReduce && sum.kind != MoveKind::kCombine) return 0;
  uint32_t round = 0;
  for (size_t i = 0; i < course.moves().size(); ++i) {
    const Move& move = course.moves()[i];
    if (move.kind != MoveKind::kReceive || !(sum.after >> i & 1)) continue;
    round = std::max<uint32_t>(round, move.round);
  }
  return round;
}

double parts_of_shard(const GroupLoad& load, const Travel& travel, const PartLimits& limits) {
  const auto filled = [&](uint64_t bytes, uint64_t limit) {
    return std::ceil(static_cast<double>(bytes) / travel.shards / static_cast<double>(limit));
  };
  const uint64_t in_rack = travel.in_rack.sent > 0 ? load.rack_encoded_bytes : 0;
  return std::max({1.0, filled(load.raw_bytes, limits.raw_bytes),
                   filled(load.encoded_bytes, limits.encoded_bytes),
                   filled(in_rack, limits.encoded_bytes)});
}

// How long the link pauses: while a part waits, it sends those ahead of it.
struct Pauses {
  double of_others_ns = 0, of_last_ns = 0;
};
Pauses pauses_of(const LaneTimes& times, double sums_ns, double trips_ns, double parts,
                 double ahead) {
  const double each_ns = times.link_ns / parts;
  const double pause_ns = (each_ns + sums_ns + trips_ns) / ahead - each_ns;
  return {std::max(0.0, parts - ahead) * std::max(0.0, pause_ns),
          std::max(0.0, sums_ns - (std::min(parts, ahead) - 1) * each_ns)};
}

// Of both levels, each with what it weighs.
double weighed(double all, double in_rack, double each, double each_in_rack) {
  return (all - in_rack) * each + in_rack * each_in_rack;
}

double bytes_of(const GroupLoad& load, double frames, double in_rack) {
  return weighed(frames, in_rack, static_cast<double>(load.encoded_bytes),
                 static_cast<double>(load.rack_encoded_bytes));
}

}  // namespace

Travel travel_of(const Way& way, uint32_t machines) {
  const Setting setting{0, machines, way};
  const Schedule schedule = one_part_each(setting);
  Travel travel;
  travel.shards = Schedule::shards(setting);
  travel.trips = schedule.rounds();
  travel.ahead = way.ahead;
  uint32_t awaited = 0;  // rounds, a bit each
  for (const Schedule::Leg& leg : schedule.legs()) {
    const double share = static_cast<double>(leg.parts.count) / schedule.parts();
    for (const Move& move : leg.course.moves()) {
      count(move, share, travel);
      awaited |= 1u << awaited_round(leg.course, move);
    }
  }
  travel.waits = static_cast<uint32_t>(std::popcount(awaited & ~1u));
  return travel;
}

const Travel& Travels::of(const GroupLoad& load) const {
  return load.lossy == 0 ? raw : lossy;
}

Travels travels_of(const Way& way, uint32_t machines) {
  const auto travel = [&](uint8_t codec) {
    Way fitted = way;
    fit_way(fitted, Group{{{0, CodecSpec{.codec = codec}}}, way}, machines);
    return travel_of(fitted, machines);
  };
  return {travel(0), travel(1)};
}

GroupLoad& GroupLoad::operator+=(const GroupLoad& other) {
  segments += other.segments;
  lossy += other.lossy;
  encode_ns += other.encode_ns;
  decode_ns += other.decode_ns;
  raw_bytes += other.raw_bytes;
  encoded_bytes += other.encoded_bytes;
  rack_encode_ns += other.rack_encode_ns;
  rack_decode_ns += other.rack_decode_ns;
  rack_encoded_bytes += other.rack_encoded_bytes;
  return *this;
}

GroupLoad GroupLoad::minus(const GroupLoad& other) const {
  return {segments - other.segments,
          lossy - other.lossy,
          encode_ns - other.encode_ns,
          decode_ns - other.decode_ns,
          raw_bytes - other.raw_bytes,
          encoded_bytes - other.encoded_bytes,
          rack_encode_ns - other.rack_encode_ns,
          rack_decode_ns - other.rack_decode_ns,
          rack_encoded_bytes - other.rack_encoded_bytes};
}

namespace {

double arithmetic_in_rack(const GroupLoad& load, const Passes& in_rack) {
  return in_rack.encodes * load.rack_encode_ns + in_rack.decodes * load.rack_decode_ns;
}

double arithmetic(const GroupLoad& load, const Passes& all, const Passes& in_rack) {
  return (all.encodes - in_rack.encodes) * load.encode_ns +
         (all.decodes - in_rack.decodes) * load.decode_ns + arithmetic_in_rack(load, in_rack);
}

}  // namespace

double rack_arithmetic_ns(const GroupLoad& load, const Travel& travel) {
  return arithmetic_in_rack(load, travel.in_rack);
}

double arithmetic_ns(const GroupLoad& load, const Travel& travel) {
  return arithmetic(load, travel, travel.in_rack);
}

double bytes_sent(const GroupLoad& load, const Travel& travel) {
  return bytes_of(load, travel.sent, travel.in_rack.sent);
}

double bytes_moved(const GroupLoad& load, const Travel& travel) {
  return bytes_of(load, travel.sent + travel.received,
                  travel.in_rack.sent + travel.in_rack.received);
}

Result<GroupLoad> load_of(const Segment& segment, const TensorTable& table, CurvesOf& curves_of) {
  CGX_ASSIGN_OR_RETURN(const CodecCurves curves, curves_of(segment.spec));
  CGX_ASSIGN_OR_RETURN(const CodecCurves in_rack, curves_of(segment.codec(true)));
  const uint64_t elements = element_count(segment, table);
  const auto computed = 4 * static_cast<double>(elements);  // sums run in fp32
  const auto encoded = [&](const CodecSpec& spec) {
    return align_range(kernels::encoded_bytes(spec, table[segment.tensor].dtype, elements));
  };
  return GroupLoad{.segments = 1,
                   .lossy = segment.spec.codec != 0,
                   .encode_ns = curves.encode.ns(computed),
                   .decode_ns = curves.decode.ns(computed),
                   .raw_bytes = segment_bytes(segment, table),
                   .encoded_bytes = encoded(segment.spec),
                   .rack_encode_ns = in_rack.encode.ns(computed),
                   .rack_decode_ns = in_rack.decode.ns(computed) +
                                     curves_of.costs().rack_pass_ns(segment.rack_spec, computed),
                   .rack_encoded_bytes = encoded(segment.codec(true))};
}

Result<GroupLoad> load_of(const Segment& segment, const TensorTable& table,
                          const MachineCosts& costs) {
  CurvesOf curves_of(costs);
  return load_of(segment, table, curves_of);
}

LaneTimes times_of(const GroupLoad& load, const Travel& travel, const LaneRules& rules) {
  const MachineCosts& costs = rules.conditions.costs;
  const Link& link = rules.conditions.link;
  const double parts_each = parts_of_shard(load, travel, rules.limits);
  const double parts = parts_each * travel.shards;
  const auto headers = [&](double frames) {
    return frames * parts * double{sizeof(wire::FrameHeader)};
  };
  const double sent = bytes_sent(load, travel) + headers(travel.sent);
  const double moved = bytes_moved(load, travel) + headers(travel.sent + travel.received);
  LaneTimes times;
  times.daemon_ns = costs.operation_ns + costs.segment_ns * static_cast<double>(load.segments) +
                    arithmetic_ns(load, travel) +
                    costs.frame_ns * parts * (travel.sent + travel.received) +
                    costs.wire_ns_per_byte * moved;
  times.first_ns = times.last_ns = times.daemon_ns / (2 * parts);
  times.sent_bytes = static_cast<uint64_t>(sent);
  times.sent_frames = parts * travel.sent;
  times.link_ns = link.ns_per_byte * sent;
  const double frames = std::max(1.0, times.sent_frames);
  const double frame_ns = costs.frame_ns + costs.wire_ns_per_byte * sent / frames;
  const double sums_ns = arithmetic(load, travel.sums, travel.rack_sums) / parts_each +
                         2 * frame_ns * travel.waits;  // one that comes, one that leaves
  const Pauses pauses =
      pauses_of(times, sums_ns, link.trip_ns * travel.waits, parts_each, travel.ahead);
  times.pauses_ns = pauses.of_others_ns;
  times.last_ns += pauses.of_last_ns;
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
  span.link_begin_ns = link_free_ns(span.daemon_begin_ns + group.first_ns);
  span.link_end_ns = span.link_begin_ns + group.link_ns + group.pauses_ns;
  span.end_ns = std::max(span.daemon_end_ns, span.link_end_ns + group.last_ns) + group.trips_ns;

  backprop_ns = span.ready_ns + share * group.daemon_ns;
  window_ns = span.start_ns + group.slot_ns;
  daemon_ns = span.daemon_end_ns;
  link_from_ns = span.link_begin_ns;
  link_ns = span.link_begin_ns + group.link_ns;
  link_alone_ns = span.link_end_ns;
  end_ns = std::max(end_ns, span.end_ns);
  work_ns += group.daemon_ns;
  return span;
}

// Pauses lie evenly between the two.
double Lanes::link_free_ns(double from_ns) const {
  if (from_ns >= link_alone_ns) return from_ns;
  if (from_ns <= link_from_ns) return link_ns;
  const double left = (link_alone_ns - from_ns) / (link_alone_ns - link_from_ns);
  return link_alone_ns - left * (link_alone_ns - link_ns);
}

// Both lines have two bends: it is enough to compare them at those of the other one.
bool Lanes::link_nowhere_later(const Lanes& other) const {
  return link_alone_ns <= other.link_alone_ns && link_free_ns(other.link_from_ns) <= other.link_ns;
}

void Lanes::nothing_before(double ns) {
  window_ns = std::max(window_ns, ns);
  daemon_ns = std::max(daemon_ns, ns);
  if (link_from_ns >= ns) return;
  link_ns = link_free_ns(ns);
  link_from_ns = ns;
  link_alone_ns = std::max(link_alone_ns, ns);
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
    for (double* each :
         {&load.encode_ns, &load.decode_ns, &load.rack_encode_ns, &load.rack_decode_ns}) {
      *each *= times;
    }
  }
  return slowed;
}

Result<WeighedPlan> weigh(const Plan& plan, const TensorTable& table,
                          std::span<const double> arrival_ns, const MachineCosts& costs) {
  WeighedPlan weighed{
      .loads = {}, .travels = {}, .gaps_ns = {}, .limits = plan.limits, .window = plan.window};
  std::map<std::tuple<Collective, uint32_t, uint32_t, bool>, Travel>
      travels;  // what of a way matters here
  double last_ns = 0;
  CurvesOf curves_of(costs);
  for (const Group& group : plan.groups) {
    GroupLoad load;
    double arrival = last_ns;
    for (const Segment& segment : group.segments) {
      CGX_ASSIGN_OR_RETURN(const GroupLoad more, load_of(segment, table, curves_of));
      load += more;
      arrival = std::max(arrival, arrival_ns[segment.tensor]);
    }
    const auto [found, added] = travels.try_emplace(
        {group.way.collective, group.way.ahead, group.way.rack_machines, group.way.exact});
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
