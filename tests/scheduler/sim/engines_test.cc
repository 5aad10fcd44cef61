// Steps of the real engines in virtual time, and what the timeline says of the same.
#include "scheduler/sim/engines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "kernels/codec.h"
#include "scheduler/sim/cost_file.h"
#include "scheduler/sim/daemon_lane.h"
#include "scheduler/sim/lines.h"
#include "scheduler/sim/run.h"

namespace cgx::scheduler::sim {
namespace {

Policy policy_of(const std::string& codec) {
  Policy policy;
  policy.default_codec = *kernels::parse_codec_spec(codec);
  return policy;
}

struct Case {
  std::string model = "resnet50", codec = "fp32", rate = "10gbit";
  uint32_t machines = 8;
  double share = 0;
  uint64_t group_bytes = Policy().group_bytes;
  Planner planner = Planner::kfixed;
};

constexpr const char kOneTensor[] = "model one\nforward 1us\ntensor all 16384x1024 1us\n";

Result<Run> play(const Case& what) {
  const auto model = what.model == "one tensor" ? parse_model(kOneTensor, "one tensor")
                                                : make_model(what.model, {});
  const Scene scene{*model,
                    what.machines,
                    {.costs = *parse_costs(builtin_costs(), "built in", ""),
                     .link = {.ns_per_byte = *parse_rate(what.rate), .trip_ns = 50e3},
                     .share = what.share}};
  Policy policy = policy_of(what.codec);
  policy.group_bytes = what.group_bytes;
  return run(scene, policy, what.planner, Core::kEngines);
}

constexpr const char kFourBits[] = "maxmin:4,bucket=512,stochastic";

using Cell = std::tuple<const char*, const char*, const char*, uint32_t>;
class TimelineBesideEngines : public ::testing::TestWithParam<Cell> {};

// What is asked of the model that mode auto plans with.
TEST_P(TimelineBesideEngines, SaysTheSameWithinFivePercent) {
  const auto& [model, codec, rate, machines] = GetParam();
  const auto played = play({model, codec, rate, machines});
  ASSERT_TRUE(played.ok()) << played.status().to_string();
  EXPECT_NEAR(played->timeline_ns(), played->engines->step_ns, 0.05 * played->engines->step_ns);
  EXPECT_NEAR(played->timeline.after.work_ns, played->engines->work_ns,
              0.02 * played->engines->work_ns);
  EXPECT_NEAR(static_cast<double>(played->timeline.sent_bytes),
              static_cast<double>(played->engines->sent_bytes),
              0.02 * static_cast<double>(played->engines->sent_bytes));
}

INSTANTIATE_TEST_SUITE_P(Eight, TimelineBesideEngines,
                         ::testing::Combine(::testing::Values("resnet50", "bert", "vgg16"),
                                            ::testing::Values("fp32", kFourBits),
                                            ::testing::Values("1gbit", "10gbit", "25gbit"),
                                            ::testing::Values(8u)));
INSTANTIATE_TEST_SUITE_P(Sixteen, TimelineBesideEngines,
                         ::testing::Combine(::testing::Values("resnet50"),
                                            ::testing::Values("fp32", kFourBits),
                                            ::testing::Values("1gbit", "10gbit", "25gbit"),
                                            ::testing::Values(16u)));

// One part ahead among 16, and the group is alone, or nearly so: the link pauses.
class TimelineOfLargeGroups : public ::testing::TestWithParam<Cell> {};

TEST_P(TimelineOfLargeGroups, SaysTheSameWithinThreePercent) {
  const auto& [model, codec, rate, machines] = GetParam();
  const auto played = play({.model = model,
                            .codec = codec,
                            .rate = rate,
                            .machines = machines,
                            .group_bytes = 64u << 20});
  ASSERT_TRUE(played.ok()) << played.status().to_string();
  EXPECT_NEAR(played->timeline_ns(), played->engines->step_ns, 0.03 * played->engines->step_ns);
}

INSTANTIATE_TEST_SUITE_P(Alone, TimelineOfLargeGroups,
                         ::testing::Combine(::testing::Values("one tensor"),
                                            ::testing::Values("fp32", kFourBits),
                                            ::testing::Values("1gbit", "10gbit", "100gbit"),
                                            ::testing::Values(4u, 16u)));
INSTANTIATE_TEST_SUITE_P(Sixteen, TimelineOfLargeGroups,
                         ::testing::Combine(::testing::Values("bert", "vgg16"),
                                            ::testing::Values("fp32", kFourBits),
                                            ::testing::Values("10gbit"), ::testing::Values(16u)));

// To the planner's one percent; it was three.
TEST(TimelineBesideEngines, PlansNothingThatTheEnginesFindSlower) {
  for (const std::string codec : {"fp32", kFourBits}) {
    Case what{.model = "gpt2", .codec = codec, .machines = 16};
    const auto fixed = play(what);
    what.planner = Planner::kboundaries;
    const auto planned = play(what);
    ASSERT_TRUE(fixed.ok() && planned.ok());
    EXPECT_LE(planned->engines->step_ns, 1.01 * fixed->engines->step_ns) << codec;
  }
}

TEST(Engines, PlayTheSameStepEachTime) {
  const auto once = play({.machines = 4}), again = play({.machines = 4});
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(once->engines->step_ns, again->engines->step_ns);
  EXPECT_EQ(once->engines->sent_bytes, again->engines->sent_bytes);
}

TEST(Engines, DelayTrainersThatShareTheirCore) {
  const Case idle{.rate = "100gbit", .machines = 4};
  Case busy = idle;
  busy.share = 1;
  const auto alone = play(idle), shared = play(busy);
  ASSERT_TRUE(alone.ok() && shared.ok());
  EXPECT_GT(shared->engines->step_ns, alone->engines->step_ns + 0.5 * alone->engines->work_ns);
}

TEST(Engines, ShowWhatMachineZeroDoes) {
  const auto played = play({.machines = 4});
  ASSERT_TRUE(played.ok());
  const double slack_ns = 1000;
  std::array<double, kLanes.size()> lasts_ns{};
  double link_ns = 0;
  for (const Bar& bar : played->engines->bars) {
    EXPECT_LE(bar.begin_ns, bar.end_ns);
    EXPECT_GE(bar.begin_ns, 0);
    EXPECT_LE(bar.end_ns, played->engines->step_ns + slack_ns);
    lasts_ns[bar.lane] += bar.end_ns - bar.begin_ns;
  }
  for (const double lasts : lasts_ns) EXPECT_GT(lasts, 0);
  EXPECT_NEAR(lasts_ns[0], played->compute_ns, slack_ns);
  EXPECT_NEAR(lasts_ns[1], played->engines->work_ns, 0.01 * played->engines->work_ns);
  link_ns = 0.8 * static_cast<double>(played->engines->sent_bytes);
  EXPECT_NEAR(lasts_ns[2], link_ns, 0.01 * link_ns);
}

TEST(Engines, RefuseWhatTheyCannotPlayByName) {
  const auto variable = play({.codec = "threshold:0.001", .machines = 2});
  ASSERT_FALSE(variable.ok());
  EXPECT_NE(variable.status().message().find("threshold"), std::string::npos);
  const auto many = play({.machines = kEnginesMax + 1});
  ASSERT_FALSE(many.ok());
  EXPECT_NE(many.status().message().find("at most 64 machines, not 65"), std::string::npos);
}

TEST(DaemonLane, DoesOneThingAfterTheOtherInTheOrderAsked) {
  DaemonLane lane;
  std::string done;
  lane.add({100, 0, [&] { done += 'a'; }}, 1000);
  lane.add({50, 1,
            [&] {
              done += 'b';
              lane.add({10, 2, [&] { done += 'd'; }}, 1150);
            }},
           1000);
  lane.add({20, 1, [&] { done += 'c'; }}, 1010);
  EXPECT_EQ(lane.next_ns(), 1100u);
  EXPECT_EQ(lane.advance(1099), 0);
  EXPECT_EQ(lane.advance(1160), 2);
  EXPECT_EQ(done, "ab");
  EXPECT_EQ(lane.next_ns(), 1170u);
  EXPECT_EQ(lane.advance(1180), 2);
  EXPECT_EQ(done, "abcd");
  EXPECT_EQ(lane.next_ns(), UINT64_MAX);
  EXPECT_EQ(lane.busy_ns(), 180);
}

}  // namespace
}  // namespace cgx::scheduler::sim
