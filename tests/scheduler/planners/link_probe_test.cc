#include "scheduler/planners/link_probe.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kSlabBytes = 256 * 1024;
constexpr int kToKnow = 5;                                  // answers, what one takes
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

TEST_F(LinkProbeTest, SendsNoMoreThanTakesHalfAStepByWhatIsKnown) {
  EXPECT_EQ(probe.due(step_of(10e6, 10e3), kSlabBytes), 0u) << "too few bytes to tell";
  EXPECT_EQ(probe.due(step_of(10e6, 100), kSlabBytes), 50'000u);
  probe.begin();
  EXPECT_EQ(probe.due(step_of(10e6, 10e3), kSlabBytes), 0u);
  EXPECT_EQ(probe.due(step_of(5e9, 100), kSlabBytes), 50'000u) << "the trainer has paused";
  probe.begin();
  EXPECT_EQ(probe.due(step_of(10e6, 1), kSlabBytes), 4 * kSlabBytes);
}

TEST_F(LinkProbeTest, SendsAFewBytesFirstWhereNothingIsKnownOfTheLink) {
  EXPECT_EQ(probe.due(step_of(10e6, 0), kSlabBytes), 4096u);
  EXPECT_FALSE(probe.take(4096 * 100));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(probe.due(step_of(10e6, 0), kSlabBytes), 0u);
  EXPECT_EQ(probe.due(step_of(10e6, 0), kSlabBytes), 50'000u);
}

TEST_F(LinkProbeTest, TakesOneInFortyOfALinksTimeOnceItIsKnown) {
  EXPECT_EQ(steps_until_due(), 1);
  EXPECT_FALSE(probe.take(2 * kSlowNs));
  for (int i = 1; i < kToKnow; ++i) {
    EXPECT_EQ(steps_until_due(), 8);
    EXPECT_FALSE(probe.take(2 * kSlowNs));
  }
  EXPECT_EQ(steps_until_due(), 32);
  EXPECT_EQ(steps_until_due(), 200) << "an answer that never comes ends nothing";
}

TEST_F(LinkProbeTest, TellsOfALinkThatBecameFasterAfterTwoAnswersAndOnce) {
  for (int i = 0; i < kToKnow; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  EXPECT_FALSE(answered_in(kFastNs));
  EXPECT_EQ(steps_until_due(), 1) << "a doubt is looked into at once";
  EXPECT_TRUE(probe.take(kFastNs));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(answered_in(kFastNs));
}

TEST_F(LinkProbeTest, TakesASingleQuickAnswerForNoFasterLink) {
  for (int i = 0; i < kToKnow; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(answered_in(kFastNs));
    EXPECT_FALSE(answered_in(kSlowNs));
  }
}

// A token bucket of 128 KiB, more or less full when it is asked.
TEST_F(LinkProbeTest, TakesABurstForNoFasterLink) {
  constexpr double kNsPerByte = 16, kBucketBytes = 128 * 1024;
  const uint64_t sent = probe.due(step_of(9e6, kNsPerByte), kSlabBytes);
  for (const double full : {0.0, 0.1, 0.0, 0.2, 0.1, 1.0, 1.0, 0.9, 1.0, 0.0, 1.0, 1.0}) {
    const double waited = static_cast<double>(sent) - full * kBucketBytes;
    EXPECT_FALSE(probe.take(static_cast<uint64_t>(kNsPerByte * waited))) << full;
    EXPECT_NE(steps_until_due(9e6), -1);
  }
}

// A probe that fits into it says nothing of the link.
TEST_F(LinkProbeTest, SendsMoreUntilItNoLongerPassesAtOnce) {
  constexpr double kNsPerByte = 16, kBucketBytes = 128 * 1024;
  const auto slow_ns = [](uint64_t bytes) {
    const double waits = std::max(0.0, static_cast<double>(bytes) - kBucketBytes);
    return static_cast<uint64_t>(50'000 + kNsPerByte * waits);
  };
  uint64_t sent = 0;
  const auto next = [&] {
    do sent = probe.due(step_of(10e6, 50), kSlabBytes);
    while (sent == 0);
  };
  next();
  EXPECT_EQ(sent, 100'000u) << "half a step, if it were so slow";
  for (int i = 0; i < 3 + kToKnow; ++i) {
    EXPECT_FALSE(probe.take(slow_ns(sent)));
    next();
  }
  EXPECT_EQ(sent, 400'000u);
  EXPECT_FALSE(probe.take(50'000)) << "fast now";
  next();
  EXPECT_TRUE(probe.take(50'000));
}

TEST_F(LinkProbeTest, ForgetsAnAnswerThatNeverComesAlsoWhileNoneIsSent) {
  ASSERT_EQ(steps_until_due(), 1);
  for (int i = 0; i < 199; ++i) probe.ended(step_of(10e6, 20));
  EXPECT_TRUE(probe.disturbs());
  probe.ended(step_of(10e6, 20));
  EXPECT_FALSE(probe.disturbs());
}

TEST_F(LinkProbeTest, LeavesThreeStepsInARowAlone) {
  for (int i = 0; i < kToKnow; ++i) {
    EXPECT_NE(steps_until_due(500e6), -1);
    EXPECT_TRUE(probe.disturbs());
    EXPECT_FALSE(probe.take(200'000'000));
    EXPECT_FALSE(probe.disturbs());
  }
  EXPECT_EQ(steps_until_due(1e12), 4) << "each step is longer than any pause";
}

TEST_F(LinkProbeTest, ForgetsWithThePlan) {
  for (int i = 0; i < kToKnow; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  probe.begin();
  for (int i = 0; i < kToKnow - 1; ++i) EXPECT_FALSE(answered_in(kFastNs));
}

// It became faster while plans were tried, so no probe saw the change.
TEST_F(LinkProbeTest, TellsOnceOfALinkThatIsFasterThanUnderThePlanBefore) {
  for (int i = 0; i < kToKnow; ++i) EXPECT_FALSE(answered_in(kSlowNs));
  probe.begin();
  probe.begin();
  const auto told = [&] {
    int times = 0;
    for (int i = 0; i < 4 * kToKnow; ++i) times += answered_in(kFastNs);
    return times;
  };
  EXPECT_EQ(told(), 1);
  probe.begin();
  EXPECT_EQ(told(), 0);
}

}  // namespace
}  // namespace cgx::scheduler
