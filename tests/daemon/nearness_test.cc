#include "daemon/nearness.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

using Move = Nearness::Move;

constexpr uint64_t kErrandNs = 20'000;

// A clock and the thread's times; every errand starts with a wake-up and ends in sleep.
struct Thread {
  Nearness nearness;
  uint64_t now_ns = 1'000'000'000;
  ThreadTimes times;

  Move errand(uint32_t cpu, uint32_t own, uint64_t ns = kErrandNs, uint64_t queued_ns = 0) {
    nearness.woken(now_ns);
    nearness.answered(cpu, own);
    now_ns += ns + queued_ns;
    times.ran_ns += ns;
    times.queued_ns += queued_ns;
    return nearness.before_sleep(now_ns, [this] { return times; });
  }
  bool follows_to(uint32_t cpu) {
    for (uint32_t i = 0; i < Nearness::kErrands; ++i) {
      if (errand(cpu, 1 - cpu) == Move::kFollow) return nearness.target() == cpu;
    }
    return false;
  }
};

TEST(NearnessTest, FollowsARankAfterARowOfShortErrandsForIt) {
  Thread thread;
  for (uint32_t i = 1; i < Nearness::kErrands; ++i) ASSERT_EQ(thread.errand(0, 1), Move::kStay);
  EXPECT_EQ(thread.errand(0, 1), Move::kFollow);
  EXPECT_EQ(thread.nearness.target(), 0u);
}

TEST(NearnessTest, StaysWithoutReason) {
  Thread thread;
  for (int i = 0; i < 200; ++i) ASSERT_EQ(thread.errand(1, 1), Move::kStay) << "near already";
  for (int i = 0; i < 200; ++i) ASSERT_EQ(thread.errand(i % 2, 3), Move::kStay) << "two ranks";
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(thread.errand(0, 1, Nearness::kShortNs + 1), Move::kStay) << "long errands";
  }
}

TEST(NearnessTest, FollowsARankThatMoves) {
  Thread thread;
  ASSERT_TRUE(thread.follows_to(0));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(thread.errand(0, 0), Move::kStay);
  EXPECT_TRUE(thread.follows_to(1));
}

TEST(NearnessTest, LetsGoWhenErrandsGetLong) {
  Thread thread;
  ASSERT_TRUE(thread.follows_to(0));
  uint32_t errands = 1;
  while (thread.errand(0, 0, 5'000'000) == Move::kStay) ASSERT_LT(++errands, 1000u);
  EXPECT_EQ(errands, Nearness::kErrands);
  EXPECT_FALSE(thread.nearness.following());
  EXPECT_TRUE(thread.follows_to(0)) << "short ones may follow at once";
}

TEST(NearnessTest, LetsGoOfACrowdedCoreAndTriesAgainLaterAndLater) {
  Thread thread;
  uint64_t patience_ns = Nearness::kPatienceNs;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(thread.follows_to(0)) << round;
    const uint64_t start_ns = thread.now_ns;
    while (thread.errand(0, 0, kErrandNs, 2 * kErrandNs) == Move::kStay) {
      ASSERT_LT(thread.now_ns, start_ns + 2 * Nearness::kLookNs);
    }
    const uint64_t released_ns = thread.now_ns;
    while (thread.errand(0, 1) != Move::kFollow) {
      ASSERT_LT(thread.now_ns, released_ns + 2 * patience_ns);
    }
    EXPECT_GE(thread.now_ns, released_ns + patience_ns);
    thread.now_ns += Nearness::kLookNs;
    thread.times.queued_ns += Nearness::kLookNs;
    ASSERT_EQ(thread.errand(0, 0), Move::kRelease);
    patience_ns *= 4;  // released twice a round
    thread.now_ns += patience_ns;
  }
}

TEST(NearnessTest, TakesTheMomentARankNeedsToFallAsleepForNoCrowd) {
  Thread thread;
  ASSERT_TRUE(thread.follows_to(0));
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(thread.errand(0, 0, kErrandNs, kErrandNs / 3), Move::kStay);
  }
}

}  // namespace
}  // namespace cgx::daemon
