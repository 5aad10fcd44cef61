#include "scheduler/planners/boundaries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "scheduler/plan/way.h"
#include "tests/scheduler/planners/planning_scene.h"

namespace cgx::scheduler {
namespace {

struct Found {
  double step_ns = INFINITY, work_ns = INFINITY;
};

// Every cut, and for each group every codec and way, as the header says.
class EveryPlan {
 public:
  explicit EveryPlan(const Scene& scene) : scene_(scene), segments_(*segments_of(scene.inputs())) {
    std::vector<CollectiveWish> wishes = {scene.policy.collective};
    if (wishes[0] == CollectiveWish::kAuto) {
      wishes = {CollectiveWish::kScatter, CollectiveWish::kAllgather};
    }
    for (const CollectiveWish wish : wishes) {
      const Way way = choose_way({.wish = wish, .machines = scene.machines}, {}, {});
      ways_.push_back(travels_of(way, scene.machines));
    }
    extend(0, {});
  }
  // Of those within the tolerance the one with the least work.
  Found best(double tolerance) const {
    Found best;
    for (const Found& each : all_) best.step_ns = std::min(best.step_ns, each.step_ns);
    for (const Found& each : all_) {
      if (each.step_ns <= best.step_ns * (1 + tolerance)) {
        best.work_ns = std::min(best.work_ns, each.work_ns);
      }
    }
    return best;
  }

 private:
  void extend(size_t from, const Lanes& before) {
    if (from == segments_.size()) {
      all_.push_back({before.step_ns(), before.work_ns});
      return;
    }
    const double last_ns = from == 0 ? 0 : arrival(from - 1);
    for (size_t end = from + 1; end <= segments_.size(); ++end) {
      for (const CodecSpec& level : scene_.menu) {
        GroupLoad load;
        for (size_t i = from; i < end; ++i) {
          Segment segment = segments_[i].segment;
          if (segments_[i].by_default) segment.spec = level;
          load += *load_of(segment, scene_.table, scene_.conditions.costs);
        }
        for (const Travels& way : ways_) {
          const Travel& travel = way.of(load);
          Lanes lanes = before;
          LaneTimes times = times_of(load, travel, {scene_.conditions, {}, scene_.policy.window});
          times.gap_ns = arrival(end - 1) - last_ns;
          lanes.advance(times, scene_.conditions.share);
          extend(end, lanes);
        }
      }
    }
  }
  double arrival(size_t segment) const {
    return scene_.arrivals[segments_[segment].segment.tensor];
  }

  const Scene& scene_;
  std::vector<PlannedSegment> segments_;
  std::vector<Travels> ways_;
  std::vector<Found> all_;
};

Proposal planned(const Scene& scene, uint64_t slice = UINT64_MAX) {
  auto search = Boundaries::create(scene.question());
  EXPECT_TRUE(search.ok()) << search.status().to_string();
  while (!search->work(slice)) {
  }
  return search->proposal();
}

void expect_best(const Scene& scene, const std::string& which) {
  const Found best = EveryPlan(scene).best(scene.tolerance);
  const Proposal proposal = planned(scene);
  EXPECT_TRUE(proposal.exact);
  expect_fitted_ways(scene, proposal);
  EXPECT_LE(proposal.step_ns, best.step_ns * (1 + scene.tolerance)) << which;
  EXPECT_DOUBLE_EQ(proposal.work_ns, best.work_ns) << which;
  // The real plan takes what was said.
  const auto plan = make_plan(scene.inputs(), proposal.groups);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const auto timeline = timeline_of(*plan, scene.table, scene.arrivals, scene.conditions);
  EXPECT_DOUBLE_EQ(timeline->step_ns(), proposal.step_ns) << which;
  EXPECT_DOUBLE_EQ(timeline->after.work_ns, proposal.work_ns) << which;
}

TEST(Boundaries, EqualBruteForceOverEveryLevelAndWay) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Scene scene = random_scene(random, 1 + random() % 5);
    scene.tolerance = round % 2 ? 0.01 : 0;
    expect_best(scene, "round " + std::to_string(round));
  }
}

TEST(Boundaries, EqualBruteForceForTenTensorsOfOneLevel) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    Scene scene = random_scene(random, 6 + random() % 5);
    scene.policy.collective = random() % 2 ? CollectiveWish::kScatter : CollectiveWish::kAllgather;
    scene.policy.default_codec = scene.menu[random() % 3];
    scene.menu = {scene.policy.default_codec};
    scene.tolerance = round % 2 ? 0.01 : 0;
    expect_best(scene, "round " + std::to_string(round));
  }
}

TEST(Boundaries, GiveTheSameHoweverTheSearchIsSliced) {
  std::mt19937 random(7);
  const Scene scene = random_scene(random, 12);
  const Proposal whole = planned(scene), sliced = planned(scene, 1);
  EXPECT_EQ(whole.groups, sliced.groups);
  EXPECT_EQ(whole.step_ns, sliced.step_ns);
  auto search = Boundaries::create(scene.question());
  EXPECT_FALSE(search->work(10));
}

// Where nothing is to be gained, nothing is: one group, no codec work.
TEST(Boundaries, TakeLessWorkAndFewerGroupsAmongEqualPlans) {
  std::mt19937 random(9);
  Scene scene = random_scene(random, 8);
  scene.conditions.link = {.ns_per_byte = 0, .trip_ns = 0};
  scene.arrivals.back() = 1e12;
  scene.policy.rules.clear();
  const Proposal proposal = planned(scene);
  EXPECT_EQ(proposal.groups.size(), 1u);
  for (const Segment& segment : proposal.groups[0].segments) EXPECT_EQ(segment.spec, kRaw);
}

TEST(Boundaries, KeepToWhatThePolicySays) {
  std::mt19937 random(15);
  for (int round = 0; round < 50; ++round) {
    Scene scene = random_scene(random, 10);
    scene.policy.rules = {{"pinned", kFourBits}};
    scene.policy.default_codec = kEightBits;
    scene.policy.collective = CollectiveWish::kScatter;
    for (const Group& group : planned(scene).groups) {
      EXPECT_EQ(group.way.collective, Collective::kScatter);
      EXPECT_EQ(group.way.reason, WayReason::kPolicy);
      for (const Segment& segment : group.segments) {
        const TensorDesc& tensor = scene.table[segment.tensor];
        if (tensor.elements < scene.policy.min_elements) {
          EXPECT_EQ(segment.spec, kRaw);
        } else if (tensor.name.starts_with("pinned")) {
          EXPECT_EQ(segment.spec, kFourBits);
        } else {
          EXPECT_NE(segment.spec, kFourBits);  // stronger than the policy's
        }
      }
    }
  }
}

TEST(Boundaries, CompressOverASlowLinkAndNotOverAFastOneWithASlowCodec) {
  std::mt19937 random(17);
  Scene scene = random_scene(random, 8);
  scene.policy.rules.clear();
  scene.policy.min_elements = 0;
  scene.policy.collective = CollectiveWish::kAuto;
  scene.conditions.costs.codecs[2].encode.ns_per_byte = 2;
  scene.conditions.link.ns_per_byte = 80;
  scene.table[3].elements = 1 << 22;  // outweighs the others by far
  scene.table[3].shape = {1 << 13, 512};
  for (const Group& group : planned(scene).groups) {
    for (const Segment& segment : group.segments) {
      EXPECT_TRUE(segment.tensor != 3 || segment.spec == kFourBits);
    }
  }
  scene.conditions.link.ns_per_byte = 0.001;
  for (const Group& group : planned(scene).groups) EXPECT_EQ(group.segments[0].spec, kRaw);
}

TEST(Boundaries, LeaveTogetherWhatArrivesAtOnce) {
  std::mt19937 random(19);
  Scene scene = random_scene(random, 40);
  for (size_t i = 0; i < 40; ++i) scene.arrivals[i] = 1e6 * static_cast<double>(1 + i / 10);
  const Proposal proposal = planned(scene);
  size_t before = 0;
  for (const Group& group : proposal.groups) {
    before += group.segments.size();
    EXPECT_EQ(before % 10, 0u);
  }
}

TEST(Boundaries, SayWhichCodecHasNoCost) {
  std::mt19937 random(21);
  Scene scene = random_scene(random, 4);
  scene.conditions.costs.codecs.erase(scene.conditions.costs.codecs.begin());
  const auto search = Boundaries::create(scene.question());
  ASSERT_FALSE(search.ok());
  EXPECT_NE(search.status().message().find("no cost of codec fp32"), std::string::npos);
}

TEST(Boundaries, SayWhatThePolicysCollectiveLacks) {
  std::mt19937 random(25);
  Scene scene = random_scene(random, 4);
  scene.machines = 6;
  scene.policy.rules.clear();
  scene.policy.collective = CollectiveWish::kTwoLevel;
  scene.policy.rack_machines = 4;
  const auto search = Boundaries::create(scene.question());
  ASSERT_FALSE(search.ok());
  EXPECT_NE(search.status().message().find("rack_machines"), std::string::npos);
  scene.policy.rack_machines = 3;
  scene.policy.default_codec = kRaw;
  for (const Group& group : planned(scene).groups) {
    EXPECT_EQ(group.way.collective, Collective::kTwoLevel);
  }
}

TEST(Boundaries, ProposeNothingForATableWithoutTensors) {
  EXPECT_TRUE(planned(Scene{}).groups.empty());
}

// 161 tensors as a network has them, 10 Gbit/s: bounded, and no worse than what the policy says.
TEST(Boundaries, AreNoWorseThanTheFixedPlanOfALargeTable) {
  std::mt19937 random(23);
  Scene scene = random_scene(random, 161);
  scene.machines = 8;
  scene.conditions.link.ns_per_byte = 0.8;
  const auto fixed = make_plan(scene.inputs());
  const auto timeline = timeline_of(*fixed, scene.table, scene.arrivals, scene.conditions);
  EXPECT_LE(planned(scene).step_ns, timeline->step_ns() * (1 + scene.tolerance));
}

}  // namespace
}  // namespace cgx::scheduler
