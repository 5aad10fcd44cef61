#include "daemon/stopper.h"

#include <gtest/gtest.h>

#include <thread>

namespace cgx::daemon {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

struct StopperTest : ::testing::Test {
  int woken = 0;
  Stopper stopper{[this] { ++woken; }};
};

TEST_F(StopperTest, GivesTheTimeOfWhoeverLeavesLeast) {
  stopper.stop({.by = "one", .limit_ns = 30 * kSecondNs});
  stopper.stop({.by = "another", .limit_ns = 0});
  stopper.stop({.by = "a third", .limit_ns = {}});
  EXPECT_EQ(woken, 3);
  const StopOrder order = stopper.begin();
  EXPECT_EQ(order.by, "one");
  EXPECT_EQ(order.limit_ns, 0u);
}

TEST_F(StopperTest, LeavesADrainThatHasBegunAsItIsUnlessThereIsNoTime) {
  EXPECT_EQ(stopper.begin().by, "") << "a signal";
  stopper.stop({.by = "one", .limit_ns = kSecondNs});
  EXPECT_FALSE(stopper.hurries());
  stopper.stop({.by = "another", .limit_ns = 0});
  EXPECT_TRUE(stopper.hurries());
  EXPECT_EQ(woken, 0) << "a second signal would end it at once";
}

TEST_F(StopperTest, ShowsTheDrainWithItsEndAsItIsLast) {
  EXPECT_FALSE(stopper.draining().has_value());
  for (const uint64_t end_ns : {30 * kSecondNs, 5 * kSecondNs}) {
    stopper.drains({.why = "one", .begun_ns = kSecondNs, .end_ns = end_ns});
    EXPECT_EQ(stopper.draining().value().end_ns, end_ns);
  }
}

TEST_F(StopperTest, TellsAllWhoWaitWhatWasCutOffFirst) {
  EXPECT_EQ(stopper.cut_off(1), std::nullopt);
  std::thread waits([&] { EXPECT_EQ(stopper.cut_off(60 * kSecondNs)->at(0), "step 7"); });
  stopper.drained({"step 7"});
  waits.join();
  stopper.drained({});
  EXPECT_EQ(stopper.cut_off(0)->size(), 1u);
}

}  // namespace
}  // namespace cgx::daemon
