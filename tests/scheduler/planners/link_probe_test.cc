#include "scheduler/planners/link_probe.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kSlabBytes = 256 * 1024;
constexpr uint64_t kSlowNs = 4'000'000, kFastNs = 400'000;  // for so many

StepSample step_of(double period_ns, double answer_ns_per_byte) {
  StepSample step;
  step.period_ns = period_ns;
  step.answer_ns_per_byte = answer_ns_per_byte;
  return step;
}

struct LinkProbeTest : ::testing::Test {
  // So many steps until one is due; -1: within 1000 none is.
  int steps_until_due(double period_ns = 10e6) {
    for (int steps = 1; steps <= 1000; ++steps) {
      if (probe.due(step_of(period_ns, 20), kSlabBytes) > 0) return steps;
    }
    return -1;
  }
  bool answered_in(uint64_t rtt_ns) {
    EXPECT_NE(steps_until_due(), -1);
    return probe.take(rtt_ns);
  }
  LinkProbe probe;
};

TEST_F(LinkProbeTest, SendsNoMoreThanTakesAStepByWhatIsKnown) {
  EXPECT_EQ(probe.due(step_of(10e6, 0), kSlabBytes), 0u) << "nothing is known of the link";
  EXPECT_EQ(probe.due(step_of(10e6, 10e3), kSlabBytes), 0u) << "too few bytes to tell";
  EXPECT_EQ(probe.due(step_of(10e6, 100), kSlabBytes), 100'000u);
  probe.begin();
  EXPECT_EQ(probe.due(step_of(10e6, 1), kSlabBytes), kSlabBytes);
}

TEST_F(LinkProbeTest, TakesOneInFiftyOfALinksTime) {
  EXPECT_EQ(steps_until_due(), 1);
  EXPECT_FALSE(probe.take(kSlowNs));
  EXPECT_EQ(steps_until_due(), 20);
  EXPECT_EQ(steps_until_due(), 200) << "an answer that never comes ends nothing";
}

TEST_F(LinkProbeTest, TellsOfALinkThatBecameFasterAfterTwoAnswersAndOnce) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  EXPECT_FALSE(answered_in(kFastNs));
  EXPECT_EQ(steps_until_due(), 1) << "a doubt is looked into at once";
  EXPECT_TRUE(probe.take(kFastNs));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(answered_in(kFastNs));
}

TEST_F(LinkProbeTest, TakesASingleQuickAnswerForNoFasterLink) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(answered_in(kFastNs));
    EXPECT_FALSE(answered_in(kSlowNs));
  }
}

TEST_F(LinkProbeTest, ForgetsWithThePlan) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  probe.begin();
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(answered_in(kFastNs));
}

}  // namespace
}  // namespace cgx::scheduler
