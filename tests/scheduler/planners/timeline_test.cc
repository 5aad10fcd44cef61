#include "scheduler/planners/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "proto/wire/frame.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/planner.h"
#include "tests/scheduler/exchange/built_group.h"

namespace cgx::scheduler {
namespace {

Way way_of(Collective collective, uint32_t machines, uint32_t rack_machines = 0) {
  return choose_way(
      {.wish = wish_for(collective), .machines = machines, .rack_machines = rack_machines}, {}, {});
}

Way without_loss(Way way) {
  way.exact = true;
  return way;
}

Conditions simple_conditions() {
  Conditions conditions;
  conditions.costs.codecs = {{kRaw, {100, 0.5}, {50, 0.25}}, {kFourBits, {200, 1}, {100, 0.5}}};
  conditions.costs.operation_ns = 1000;
  conditions.costs.segment_ns = 10;
  conditions.costs.frame_ns = 5;
  conditions.costs.wire_ns_per_byte = 0.125;
  conditions.link = {.ns_per_byte = 2, .trip_ns = 300};
  return conditions;
}

TEST(Travel, CountsWhatTheSchedulesMovesSay) {
  const Travel alone = travel_of(way_of(Collective::kScatter, 1), 1);
  EXPECT_EQ(alone.sent + alone.received + alone.encodes + alone.decodes, 0);
  EXPECT_EQ(alone.trips, 0u);
  for (const uint32_t machines : {2u, 3u, 4u, 8u, 64u}) {
    const double m = machines;
    const Travel scatter = travel_of(way_of(Collective::kScatter, machines), machines);
    EXPECT_NEAR(scatter.sent, 2 * (m - 1) / m, 1e-9);
    EXPECT_NEAR(scatter.received, 2 * (m - 1) / m, 1e-9);
    EXPECT_NEAR(scatter.encodes, 1, 1e-9);
    EXPECT_NEAR(scatter.decodes, (2 * (m - 1) + 1) / m, 1e-9);
    EXPECT_EQ(scatter.trips, 2u);
    EXPECT_EQ(scatter.waits, 1u) << "for contributions, which are one sum";
    EXPECT_NEAR(scatter.sums.encodes, 1 / m, 1e-9) << "of the own shard";
    EXPECT_NEAR(scatter.sums.decodes, 1, 1e-9);
    const Travel gather = travel_of(way_of(Collective::kAllgather, machines), machines);
    EXPECT_NEAR(gather.sent, m - 1, 1e-9);
    EXPECT_NEAR(gather.encodes, 1, 1e-9);
    EXPECT_NEAR(gather.decodes, m, 1e-9);
    EXPECT_EQ(gather.trips, 1u);
    EXPECT_EQ(gather.waits, 1u);
    EXPECT_NEAR(gather.sums.decodes, m, 1e-9);
  }
  // 8 machines in racks of 4: three neighbours twice, one machine of the other rack once.
  const Travel racks = travel_of(without_loss(way_of(Collective::kTwoLevel, 8, 4)), 8);
  EXPECT_NEAR(racks.sent, (2 * 3 + 1) / 4.0, 1e-9);
  EXPECT_EQ(racks.trips, 3u);
  EXPECT_EQ(racks.waits, 2u) << "for the rack, then for the other one";
  // With loss: to three neighbours what they own or pass on, and what this one does; of its own
  // shard to the other rack, and of the other's.
  const Travel lossy = travel_of(way_of(Collective::kTwoLevel, 8, 4), 8);
  EXPECT_NEAR(lossy.sent, (3 * 2 + 3 * 2 + 2) / 8.0, 1e-9);
  EXPECT_NEAR(lossy.encodes, 1, 1e-9) << "of every value once";
  EXPECT_EQ(lossy.trips, 4u);
  EXPECT_EQ(lossy.waits, 2u);
}

// Every frame of the real schedule over the real layout, against the product.
TEST(Travel, TimesTheBytesOfAGroupIsWhatItsFramesCarry) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const uint32_t machines = 2 + random() % 7;
    Case made{.machines = machines};
    for (uint32_t i = 0; i < 1 + random() % 5; ++i) {
      made.tensors.push_back({1 + random() % 2'000'000, random() % 2 ? kRaw : kFourBits});
    }
    Built built = build(made);
    const Collective collective = random() % 2 ? Collective::kScatter : Collective::kAllgather;
    built.group.way = way_of(collective, machines);
    const Setting setting{0, machines, built.group.way};
    const GroupLayout layout =
        GroupLayout::create(built.group, built.table, Schedule::shards(setting), {});
    const Schedule schedule = Schedule::create(setting, layout);
    double sent = 0, frames = 0;
    for (uint32_t part = 0; part < schedule.parts(); ++part) {
      for (const Move& move : schedule.course(part).moves()) {
        if (move.kind != MoveKind::kSend) continue;
        frames += static_cast<double>(move.machines.size());
        sent += static_cast<double>(move.machines.size()) *
                static_cast<double>(layout.part(part).encoded_bytes);
      }
    }
    sent += frames * sizeof(wire::FrameHeader);
    GroupLoad load;
    const Conditions conditions = simple_conditions();
    for (const Segment& segment : built.group.segments) {
      load += *load_of(segment, built.table, conditions.costs);
    }
    const LaneTimes times =
        times_of(load, travel_of(built.group.way, machines), {conditions, {}, 4});
    // Shards end at buckets, slices are padded: some kilobytes a part.
    const double slack = frames * (2048 + 64 * 5 + 2 * sizeof(wire::FrameHeader));
    EXPECT_NEAR(static_cast<double>(times.sent_bytes), sent, slack) << "round " << round;
  }
}

// The rack's codec weighs what is added in the rack, and nothing else.
TEST(Travel, CountsWhatHasTheCodecOfRacks) {
  const uint64_t elements = 512 * 8 * 8;  // ranges need no padding
  Built built = build({{{elements, kFourBits}}, 8});
  built.group.way = way_of(Collective::kTwoLevel, 8, 4);
  built.group.segments[0].rack_spec = kRaw;
  const Setting setting{3, 8, built.group.way};
  const GroupLayout layout = GroupLayout::create(built.group, built.table, 8, {});
  const Schedule schedule = Schedule::create(setting, layout);
  uint64_t sent = 0, frames = 0;
  for (uint32_t part = 0; part < schedule.parts(); ++part) {
    for (const Move& move : schedule.course(part).moves()) {
      if (move.kind != MoveKind::kSend && move.kind != MoveKind::kForward) continue;
      frames += move.machines.size();
      sent += move.machines.size() * layout.part(part).encoded(move.in_rack);
    }
  }
  const Conditions conditions = simple_conditions();
  const GroupLoad load = *load_of(built.group.segments[0], built.table, conditions.costs);
  const Travel travel = travel_of(built.group.way, 8);
  EXPECT_NEAR(travel.in_rack.encodes, 6 / 8.0, 1e-9) << "of two shards for each neighbour";
  EXPECT_NEAR(travel.in_rack.decodes, 2 * 3 / 8.0, 1e-9);
  EXPECT_NEAR(travel.in_rack.sent, 6 / 8.0, 1e-9);
  EXPECT_NEAR(travel.in_rack.received, 6 / 8.0, 1e-9);
  const LaneTimes times = times_of(load, travel, {conditions, {}, 4});
  EXPECT_EQ(times.sent_bytes, sent + frames * sizeof(wire::FrameHeader));
  const double raw = 0.75 * (100 + 0.5 * 4 * elements) + 0.75 * (50 + 0.25 * 4 * elements);
  EXPECT_NEAR(rack_arithmetic_ns(load, travel), raw, 1e-6);
}

// What is not raw is decoded to memory before it is added.
TEST(Travel, ChargesAPassMoreForACodecOfRacksThatLoses) {
  Conditions conditions = simple_conditions();
  conditions.costs.copy_ns_per_byte = 2;
  Built built = build({{{4096, kFourBits}}, 8});
  Segment& segment = built.group.segments[0];
  const auto decode_ns = [&] {
    return load_of(segment, built.table, conditions.costs)->rack_decode_ns;
  };
  EXPECT_EQ(decode_ns(), 100 + 0.5 * 4 * 4096) << "its own codec: added as it is decoded";
  segment.rack_spec = kRaw;
  EXPECT_EQ(decode_ns(), 50 + 0.25 * 4 * 4096);
  segment.rack_spec = CodecSpec{.codec = 3, .bits = 8, .bucket = 512};
  EXPECT_EQ(decode_ns(), 100 + (0.5 + 2) * 4 * 4096);
}

TEST(Times, AddUpToWhatOneWouldWriteDown) {
  const Conditions conditions = simple_conditions();
  const Built built = build({{{1024, kRaw}}, 2});
  const GroupLoad load = *load_of(built.group.segments[0], built.table, conditions.costs);
  EXPECT_EQ(load.raw_bytes, 4096u);
  EXPECT_EQ(load.encoded_bytes, 4096u);
  EXPECT_DOUBLE_EQ(load.encode_ns, 100 + 0.5 * 4096);
  EXPECT_DOUBLE_EQ(load.decode_ns, 50 + 0.25 * 4096);
  // One frame each way: 4096 bytes and a header.
  const Travel gather = travel_of(way_of(Collective::kAllgather, 2), 2);
  const LaneTimes times = times_of(load, gather, {conditions, {}, 4});
  const double bytes = 4096 + 128;
  EXPECT_DOUBLE_EQ(times.daemon_ns, 1000 + 10 + 2148 + 2 * 1074 + 2 * 5 + 0.125 * 2 * bytes);
  EXPECT_DOUBLE_EQ(times.link_ns, 2 * bytes);
  EXPECT_EQ(times.sent_bytes, 4224u);
  EXPECT_DOUBLE_EQ(times.trips_ns, 300);
  EXPECT_DOUBLE_EQ(times.pauses_ns, 0) << "of one part";
  EXPECT_DOUBLE_EQ(times.slot_ns, 75);
  EXPECT_DOUBLE_EQ(times.first_ns, times.daemon_ns / 2);
  EXPECT_DOUBLE_EQ(times.last_ns, times.first_ns + 2 * 1074 + 2 * (5 + 0.125 * bytes)) << "the sum";
}

// Four full frames a shard: among 16 one is sent ahead, among 8 two are, which take longer than
// a sum does.
TEST(Times, LeaveTheLinkIdleWhereAPartWaitsLongerThanThoseAheadOfItTake) {
  const Conditions conditions = simple_conditions();
  const double part = 216 * 1024, sum_of = 0.5 * part + 16 * 0.25 * part;
  const auto pauses = [&](uint32_t machines) {
    const Built built = build({{{uint64_t{4} * machines * 54 * 1024, kRaw}}, machines});
    const GroupLoad load = *load_of(built.group.segments[0], built.table, conditions.costs);
    return times_of(load, travel_of(way_of(Collective::kScatter, machines), machines),
                    {conditions, {}, 4})
        .pauses_ns;
  };
  const double frame = 5 + 0.125 * (part + sizeof(wire::FrameHeader));
  EXPECT_NEAR(pauses(16), 3 * (sum_of + 2 * frame + 300), 100) << "the last part's is no pause";
  EXPECT_EQ(pauses(8), 0);
}

TEST(Lanes, FillThePausesOfAGroupWithTheNextOnesFrames) {
  const LaneTimes pausing{.link_ns = 30, .pauses_ns = 10};
  const auto second_begins = [&](double gap) {
    return play(std::vector{pausing, LaneTimes{.gap_ns = gap, .link_ns = 5}}, 0)
        .groups[1]
        .link_begin_ns;
  };
  EXPECT_EQ(play(std::vector{pausing}, 0).step_ns(), 40);
  EXPECT_EQ(second_begins(0), 30) << "all of them";
  EXPECT_EQ(second_begins(20), 35) << "the second half";
  EXPECT_EQ(second_begins(40), 40);
  EXPECT_EQ(second_begins(50), 50);
}

TEST(Lanes, CompareLinksByWhenTheyAreFree) {
  std::mt19937 random(17);
  const auto up_to = [&](uint32_t most) { return static_cast<double>(random() % (most + 1)); };
  uint32_t nowhere_later = 0;
  for (int round = 0; round < 2000; ++round) {
    std::array<Lanes, 2> lanes;
    for (Lanes& each : lanes) {
      each.link_from_ns = up_to(8);
      each.link_ns = each.link_from_ns + 1 + up_to(7);
      each.link_alone_ns = each.link_ns + up_to(4);
    }
    bool everywhere = true;
    for (double from = 0; from <= 24; from += 0.125) {
      everywhere &= lanes[0].link_free_ns(from) <= lanes[1].link_free_ns(from) + 1e-9;
      Lanes later = lanes[0];
      later.nothing_before(10);
      EXPECT_NEAR(later.link_free_ns(10 + from), lanes[0].link_free_ns(10 + from), 1e-9);
    }
    EXPECT_EQ(lanes[0].link_nowhere_later(lanes[1]), everywhere) << "round " << round;
    nowhere_later += everywhere ? 1 : 0;
  }
  EXPECT_GT(nowhere_later, 200u);
}

TEST(Lanes, FollowEachOtherAsTheHeaderSays) {
  const LaneTimes group{.gap_ns = 10,
                        .daemon_ns = 8,
                        .first_ns = 2,
                        .last_ns = 3,
                        .link_ns = 20,
                        .trips_ns = 5,
                        .slot_ns = 1};
  const Timeline timeline = play(std::vector{group, group}, 0.5);
  const GroupSpan& first = timeline.groups[0];
  EXPECT_EQ(first.ready_ns, 10);
  EXPECT_EQ(first.daemon_end_ns, 18);
  EXPECT_EQ(first.link_begin_ns, 12);
  EXPECT_EQ(first.link_end_ns, 32);
  EXPECT_EQ(first.end_ns, 40);  // the last part, then the trip
  const GroupSpan& second = timeline.groups[1];
  EXPECT_EQ(second.ready_ns, 24);  // half of 8 was lost
  EXPECT_EQ(second.daemon_begin_ns, 24);
  EXPECT_EQ(second.link_begin_ns, 32);  // the link is busy
  EXPECT_EQ(second.end_ns, 60);
  EXPECT_EQ(timeline.step_ns(), 60);
  EXPECT_EQ(timeline.after.work_ns, 16);
}

TEST(Lanes, HoldAGroupUntilTheWindowHasRoom) {
  const LaneTimes group{.trips_ns = 40, .slot_ns = 40};  // one operation at a time
  const Timeline timeline = play(std::vector(3, group), 0);
  EXPECT_EQ(timeline.step_ns(), 120);
}

// The same lanes as machines that are looked at every nanosecond.
double ticked(const std::vector<LaneTimes>& groups, double share) {
  const size_t count = groups.size();
  constexpr double kNever = -1;
  std::vector<double> ready(count, kNever), start(count, kNever), begin(count, kNever),
      worked(count, kNever), sending(count, kNever), sent(count, kNever);
  double trainers_free = 0, slot_free = 0, daemon_free = 0, link_free = 0;
  size_t handing = 0, starting = 0, working = 0, linking = 0;
  double handed_at = -1, end = 0;
  for (double now = 0; linking < count && now < 1e6; ++now) {
    for (bool moved = true; moved;) {  // whatever takes no time happens within the tick
      moved = false;
      if (handing < count && now >= trainers_free) {
        if (handed_at < 0)
          handed_at = trainers_free + groups[handing].gap_ns + groups[handing].stall_ns;
        if (now >= handed_at) {
          ready[handing] = now;
          trainers_free = now + share * groups[handing].daemon_ns;
          handed_at = -1;
          ++handing;
          moved = true;
        }
      }
      if (starting < handing && now >= slot_free) {
        start[starting] = now;
        slot_free = now + groups[starting].slot_ns;
        ++starting;
        moved = true;
      }
      if (working < starting && now >= daemon_free) {
        begin[working] = now;
        daemon_free = worked[working] = now + groups[working].daemon_ns;
        ++working;
        moved = true;
      }
      if (linking < working && now >= link_free &&
          now >= begin[linking] + groups[linking].first_ns) {
        link_free = sent[linking] = now + groups[linking].link_ns;
        end = std::max(end, std::max(worked[linking], sent[linking] + groups[linking].last_ns) +
                                groups[linking].trips_ns);
        ++linking;
        moved = true;
      }
    }
  }
  return std::max(end, trainers_free);
}

std::vector<LaneTimes> random_groups(std::mt19937& random) {
  const auto up_to = [&](uint32_t most) { return static_cast<double>(random() % (most + 1)); };
  std::vector<LaneTimes> groups(1 + random() % 9);
  for (LaneTimes& group : groups) {
    group = {.gap_ns = up_to(30),
             .stall_ns = up_to(3),
             .daemon_ns = 2 * up_to(15),
             .link_ns = up_to(40),
             .trips_ns = up_to(20),
             .slot_ns = up_to(12)};
    group.first_ns = std::floor(group.daemon_ns / 4);
    group.last_ns = std::floor(group.daemon_ns / 3);
  }
  return groups;
}

TEST(Lanes, EqualAPlayOfEveryNanosecond) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<LaneTimes> groups = random_groups(random);
    const double share = std::array{0.0, 0.5, 1.0}[random() % 3];
    ASSERT_EQ(play(groups, share).step_ns(), ticked(groups, share)) << "round " << round;
  }
}

TEST(Lanes, NeverGetFasterWhenSomethingTakesLonger) {
  std::mt19937 random(13);
  for (int round = 0; round < 2000; ++round) {
    std::vector<LaneTimes> groups = random_groups(random);
    for (LaneTimes& group : groups) group.pauses_ns = static_cast<double>(random() % 20);
    const double before = play(groups, 0.5).step_ns();
    LaneTimes& slower = groups[random() % groups.size()];
    double LaneTimes::*const what[] = {
        &LaneTimes::gap_ns,    &LaneTimes::stall_ns, &LaneTimes::daemon_ns,
        &LaneTimes::first_ns,  &LaneTimes::last_ns,  &LaneTimes::link_ns,
        &LaneTimes::pauses_ns, &LaneTimes::trips_ns, &LaneTimes::slot_ns};
    slower.*what[random() % std::size(what)] += 1 + random() % 20;
    EXPECT_GE(play(groups, 0.5).step_ns(), before);
    EXPECT_GE(play(groups, 0.75).step_ns(), play(groups, 0.5).step_ns());
  }
}

TEST(TimelineOf, ChargesTheGroupsOfARealPlanWhereTheirLastTensorArrives) {
  const TensorTable table = {{.name = "a.weight", .elements = 4096, .shape = {64, 64}},
                             {.name = "b.weight", .elements = 8192, .shape = {64, 128}},
                             {.name = "c.weight", .elements = 4096, .shape = {64, 64}}};
  Policy policy;
  policy.group_bytes = 48 * 1024;  // c and b together, a apart
  const std::vector<uint32_t> order = reverse_registration(3);
  const auto plan = make_plan({.table = table, .policy = policy, .order = order, .machines = 8});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->groups.size(), 2u);
  const std::vector<double> arrivals = {900, 500, 100};
  const Conditions conditions = simple_conditions();
  const auto timeline = timeline_of(*plan, table, arrivals, conditions);
  ASSERT_TRUE(timeline.ok());
  EXPECT_EQ(timeline->times[0].gap_ns, 500);
  EXPECT_EQ(timeline->times[1].gap_ns, 400);
  EXPECT_EQ(timeline->groups[0].ready_ns, 500);
  GroupLoad load = *load_of(plan->groups[0].segments[0], table, conditions.costs);
  load += *load_of(plan->groups[0].segments[1], table, conditions.costs);
  const LaneTimes first = times_of(load, travel_of(plan->groups[0].way, 8), {conditions, {}, 4});
  EXPECT_EQ(timeline->times[0].daemon_ns, first.daemon_ns);
  EXPECT_EQ(timeline->sent_bytes, timeline->times[0].sent_bytes + timeline->times[1].sent_bytes);
}

TEST(TimelineOf, NamesACodecWithoutACost) {
  const Built built = build({{{5000, {.codec = 1, .bucket = 512}}}, 2});
  const auto load = load_of(built.group.segments[0], built.table, simple_conditions().costs);
  ASSERT_FALSE(load.ok());
  EXPECT_NE(load.status().message().find("no cost of codec fp16"), std::string::npos)
      << load.status().message();
}

TEST(Costs, FallBackToTheSameCodecAtTheClosestStrength) {
  MachineCosts costs = simple_conditions().costs;
  costs.copy_ns_per_byte = 0.0625;
  CodecSpec eight = kFourBits;
  eight.bits = 8;
  EXPECT_EQ(costs.curves_of(eight)->encode.ns_per_byte, 1);
  eight.flags |= CodecSpec::kFeedback;
  EXPECT_EQ(costs.curves_of(eight)->encode.ns_per_byte, 1.0625);  // and the residual
}

}  // namespace
}  // namespace cgx::scheduler
