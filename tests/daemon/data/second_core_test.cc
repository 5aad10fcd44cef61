#include "daemon/data/second_core.h"

#include <gtest/gtest.h>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

TEST(SecondCore, IsFreeUntilAJobIsTakenBack) {
  SecondCore core;
  EXPECT_TRUE(core.free(0));
  core.answered(5 * kMillisecond, 40'000, false);
  EXPECT_TRUE(core.free(5 * kMillisecond));
  core.answered(6 * kMillisecond, 60'000, true);
  EXPECT_FALSE(core.free(6 * kMillisecond));
  EXPECT_TRUE(core.free(6 * kMillisecond + SecondCore::kPauseLeastNs));
}

TEST(SecondCore, IsLeftAloneTheLongerTheMoreOftenItIsMissing) {
  SecondCore core;
  uint64_t now = 0, longest = 0;
  for (int i = 0; i < 20; ++i) {
    core.answered(now, 60'000, true);
    uint64_t pause = 0;
    while (!core.free(now + pause)) pause += kMillisecond;
    EXPECT_GE(pause, longest);
    longest = pause;
    now += pause;
  }
  EXPECT_EQ(longest, SecondCore::kPauseMostNs);
}

TEST(SecondCore, IsMissingWhereTheDataThreadIsPreempted) {
  SecondCore core;
  core.preempted(10 * kMillisecond, 100);  // the first look knows no count before it
  EXPECT_TRUE(core.free(10 * kMillisecond));
  EXPECT_FALSE(core.window_is_over(10 * kMillisecond + kMillisecond / 2));
  ASSERT_TRUE(core.window_is_over(11 * kMillisecond));
  core.preempted(11 * kMillisecond, 101);
  EXPECT_TRUE(core.free(11 * kMillisecond)) << "one preemption is anybody's";
  core.preempted(12 * kMillisecond, 103);
  EXPECT_FALSE(core.free(12 * kMillisecond));
}

TEST(SecondCore, TakesNoNoticeOfPreemptionsWhileThereWereNoJobs) {
  SecondCore core;
  core.preempted(10 * kMillisecond, 0);
  core.preempted(500 * kMillisecond, 90);
  EXPECT_TRUE(core.free(500 * kMillisecond));
}

}  // namespace
}  // namespace cgx::daemon
