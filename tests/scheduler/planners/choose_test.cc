#include "scheduler/planners/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "scheduler/planners/boundaries.h"
#include "scheduler/planners/choices.h"
#include "tests/scheduler/planners/planning_scene.h"

namespace cgx::scheduler {
namespace {

TEST(Choices, AreAsManyAsThePaperCounts) {
  const std::vector<Choices> all = all_choices({});
  EXPECT_EQ(all.size(), 4341u);
  EXPECT_EQ(all_choices({.cpu = false, .gpu = true}).size(), 174u);
  std::set<std::string> texts;
  for (const Choices& each : all) {
    texts.insert(to_string(each));
    // Second steps pair with first ones, and what is compressed is decompressed in the end.
    int open = 0;
    bool coded = false;
    for (const Stage& stage : each.stages) {
      const bool first = stage.task == Task::kFirst || stage.task == Task::kFirstCoded;
      const bool second = stage.task == Task::kSecond || stage.task == Task::kSecondCoded;
      open += first ? 1 : second ? -1 : 0;
      EXPECT_GE(open, 0) << to_string(each);
      if (stage.task == Task::kCompress) coded = true;
      if (stage.task == Task::kDecompress) coded = false;
      const bool carries_coded = stage.task == Task::kWholeCoded ||
                                 stage.task == Task::kFirstCoded ||
                                 stage.task == Task::kSecondCoded;
      const bool carries_plain =
          stage.task == Task::kWhole || stage.task == Task::kFirst || stage.task == Task::kSecond;
      EXPECT_TRUE(!carries_coded || coded) << to_string(each);
      EXPECT_TRUE(!carries_plain || !coded) << to_string(each);
    }
    EXPECT_EQ(open, 0) << to_string(each);
    EXPECT_FALSE(coded) << to_string(each);
  }
  // Texts name no scheme twice, but a coded allgather is one in one step or the second of two.
  EXPECT_GT(texts.size(), 4000u);
}

TEST(Choices, LeaveTwelveFlatOnesToOneKindOfProcessor) {
  int flat = 0;
  std::set<std::pair<bool, Collective>> ways;
  for (const Choices& each : all_choices({.cpu = true, .gpu = false})) {
    flat += each.two_levels ? 0 : 1;
    if (const auto how = realisable(each)) {
      EXPECT_TRUE(ways.insert({how->coded, how->collective}).second) << to_string(each);
    }
  }
  EXPECT_EQ(flat, 12);
  EXPECT_EQ(ways.size(), 4u);  // raw and coded, scatter and allgather
  for (const Choices& each : all_choices({.cpu = false, .gpu = true})) {
    const bool computes = std::any_of(each.stages.begin(), each.stages.end(),
                                      [](const Stage& stage) { return stage.gpu; });
    EXPECT_FALSE(computes && realisable(each)) << to_string(each);
  }
}

Proposal chosen(const Scene& scene, uint64_t slice = UINT64_MAX) {
  auto search = Choose::create(scene.question());
  EXPECT_TRUE(search.ok()) << search.status().to_string();
  while (!search->work(slice)) {
  }
  return search->proposal();
}

TEST(Choose, ProposesPlansThatTakeWhatItSays) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Scene scene = random_scene(random, 1 + random() % 40);
    if (round % 5 == 0) scene.policy.segment_bytes = 64 * 1024;
    const Proposal proposal = chosen(scene);
    expect_fitted_ways(scene, proposal);
    const auto plan = make_plan(scene.inputs(), proposal.groups);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const auto timeline = timeline_of(*plan, scene.table, scene.arrivals, scene.conditions);
    EXPECT_NEAR(timeline->step_ns(), proposal.step_ns, 1e-9 * proposal.step_ns);
    EXPECT_NEAR(timeline->after.work_ns, proposal.work_ns, 1e-9 * proposal.work_ns);
  }
}

// Layer-wise, one group, 1 MiB, raw and at the policy's codec.
TEST(Choose, IsNeverWorseThanAFixedPlan) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    Scene scene = random_scene(random, 30);
    scene.tolerance = 0;
    const double ours = chosen(scene).step_ns;
    for (const uint64_t bytes : {uint64_t{4096}, uint64_t{1} << 20, uint64_t{1} << 30}) {
      for (const CodecSpec& codec : {kRaw, scene.policy.default_codec}) {
        Scene fixed = scene;
        fixed.policy.group_bytes = bytes;
        fixed.policy.default_codec = codec;
        const auto plan = make_plan(fixed.inputs());
        ASSERT_TRUE(plan.ok());
        const auto timeline = timeline_of(*plan, scene.table, scene.arrivals, scene.conditions);
        // Its groups may be cut a tensor earlier or later than a start's.
        EXPECT_LE(ours, timeline->step_ns() * 1.02) << "round " << round;
      }
    }
    const auto own = make_plan(scene.inputs());
    const auto timeline = timeline_of(*own, scene.table, scene.arrivals, scene.conditions);
    EXPECT_LE(ours, timeline->step_ns() * (1 + 1e-9)) << "round " << round;
  }
}

// One gradient, late: next to the time until it is there it hardly matters how it travels.
TEST(Choose, TakesNoPlanThatIsHardlyFasterForMuchMoreWork) {
  Scene scene;
  scene.table.push_back({.name = "layer", .elements = 1 << 20, .shape = {2048, 512}});
  scene.order = {0};
  scene.arrivals = {2e9};
  scene.policy.default_codec = kEightBits;
  scene.menu = {kRaw};
  scene.conditions.link.ns_per_byte = 2;
  scene.conditions.costs.wire_ns_per_byte = 0.125;
  scene.conditions.costs.codecs = {{kRaw, {0, 0.0625}, {0, 0.0625}},
                                   {kEightBits, {0, 0.5}, {0, 0.5}}};
  const Proposal lean = chosen(scene);
  scene.tolerance = 0;
  const Proposal fast = chosen(scene);
  EXPECT_EQ(lean.groups[0].segments[0].spec, kRaw);
  EXPECT_EQ(fast.groups[0].segments[0].spec, kEightBits);
  EXPECT_LT(fast.step_ns, 0.999 * lean.step_ns);
  EXPECT_GT(fast.step_ns, 0.99 * lean.step_ns);
  EXPECT_GE(fast.work_ns, 2 * lean.work_ns);
}

TEST(Choose, AnswersWithinItsToleranceOfTheBestAndWithLessWork) {
  std::mt19937 random(11);
  int leaner = 0;
  for (int round = 0; round < 60; ++round) {
    Scene scene = random_scene(random, 2 + random() % 30);
    const Proposal lean = chosen(scene);
    scene.tolerance = 0;
    const Proposal fast = chosen(scene);
    EXPECT_LE(lean.step_ns, 1.01 * fast.step_ns) << "round " << round;
    EXPECT_LE(lean.work_ns, fast.work_ns * (1 + 1e-9)) << "round " << round;
    leaner += lean.work_ns < 0.99 * fast.work_ns;
  }
  EXPECT_GE(leaner, 10);
}

// What boundaries finds is the best of plans with one codec a group; greed comes close.
TEST(Choose, ComesCloseToTheExactPlanner) {
  std::mt19937 random(7);
  std::vector<double> ratios;
  for (int round = 0; round < 100; ++round) {
    Scene scene = random_scene(random, 2 + random() % 12);
    scene.tolerance = 0;
    auto exact = Boundaries::create(scene.question());
    exact->work(UINT64_MAX);
    ratios.push_back(chosen(scene).step_ns / exact->proposal().step_ns);
  }
  std::sort(ratios.begin(), ratios.end());
  EXPECT_LE(ratios[50], 1.01);
  EXPECT_LE(ratios[95], 1.10);
  EXPECT_LE(ratios.back(), 1.25);
}

TEST(Choose, GivesTheSameHoweverTheSearchIsSliced) {
  std::mt19937 random(9);
  const Scene scene = random_scene(random, 20);
  EXPECT_EQ(chosen(scene).groups, chosen(scene, 1).groups);
  auto search = Choose::create(scene.question());
  EXPECT_FALSE(search->work(1));
  EXPECT_FALSE(search->proposal().groups.empty());  // the best so far
}

TEST(Choose, ProposesNothingForATableWithoutTensors) {
  EXPECT_TRUE(chosen(Scene{}).groups.empty());
}

// So many tensors, a microsecond apart; each operation takes so long that few are best.
Scene of_dear_operations(size_t tensors, uint64_t elements) {
  Scene scene;
  for (uint32_t i = 0; i < tensors; ++i) {
    const std::vector<uint64_t> shape = {elements / 512, 512};
    scene.table.push_back({.name = std::to_string(i), .elements = elements, .shape = shape});
    scene.order.push_back(i);
    scene.arrivals.push_back(1e3 * i);
  }
  scene.conditions.link.ns_per_byte = 1;
  MachineCosts& costs = scene.conditions.costs;
  costs.operation_ns = 1e9;
  costs.codecs = {{kRaw, {}, {}}, {kEightBits, {0, 1}, {}}, {kFourBits, {0, 2}, {}}};
  return scene;
}

TEST(Choose, MakesNoGroupOfTooManySegments) {
  const Scene scene = of_dear_operations(kGroupSegmentsMax + kGroupSegmentsMax / 2, 1024);
  const Proposal proposal = chosen(scene);
  EXPECT_EQ(proposal.groups.size(), 2u);
  for (const Group& group : proposal.groups) EXPECT_LE(group.segments.size(), kGroupSegmentsMax);
}

TEST(Choose, TriesTheCodecsOfACutTensorOnce) {
  Scene scene = of_dear_operations(2, 1 << 20);
  const auto slices = [&] {  // of one plan or two that are looked at
    auto search = Choose::create(scene.question());
    EXPECT_TRUE(search.ok());
    int slices = 1;
    while (!search->work(1)) ++slices;
    return slices;
  };
  const int whole = slices();
  scene.policy.segment_bytes = 64 << 10;
  ASSERT_EQ(segments_of(scene.inputs())->size(), 128u);
  EXPECT_LT(slices(), whole + 16);
}

TEST(Choose, KeepsToWhatThePolicySays) {
  std::mt19937 random(15);
  for (int round = 0; round < 30; ++round) {
    Scene scene = random_scene(random, 12);
    scene.policy.rules = {{"pinned", kFourBits}};
    scene.policy.default_codec = kEightBits;
    scene.policy.collective = CollectiveWish::kScatter;
    for (const Group& group : chosen(scene).groups) {
      EXPECT_EQ(group.way.collective, Collective::kScatter);
      for (const Segment& segment : group.segments) {
        const TensorDesc& tensor = scene.table[segment.tensor];
        const bool small = tensor.elements < scene.policy.min_elements;
        const bool pinned = !small && tensor.name.starts_with("pinned");
        EXPECT_EQ(segment.spec == kFourBits, pinned) << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace cgx::scheduler
