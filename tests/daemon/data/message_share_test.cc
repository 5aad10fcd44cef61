#include "daemon/data/message_share.h"

#include <gtest/gtest.h>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

TEST(MessageShare, LeavesShortMessagesAlone) {
  MessageShare share;
  share.took(10 * kMillisecond, MessageShare::kRoundNs - 1);
  EXPECT_FALSE(share.paused(10 * kMillisecond));
}

// Also those that take longer than a round of gradients may wait.
TEST(MessageShare, IsAQuarterOfTheThreadHoweverLongAMessageTakes) {
  for (const uint64_t took : {kMillisecond, 13 * kMillisecond, 60 * kMillisecond}) {
    MessageShare share;
    const uint64_t ended = 100 * kMillisecond;
    share.took(ended, took);
    EXPECT_TRUE(share.paused(ended + 3 * took - 1)) << took;
    EXPECT_FALSE(share.paused(ended + 3 * took)) << took;
    EXPECT_EQ(share.next_ns(), ended + 3 * took);
  }
}

TEST(MessageShare, KeepsNobodyFromBeingHeardForLongerThanHalfASecond) {
  MessageShare share;
  share.took(0, 10 * kSecond);
  EXPECT_TRUE(share.paused(500 * kMillisecond - 1));
  EXPECT_FALSE(share.paused(500 * kMillisecond));
}

}  // namespace
}  // namespace cgx::daemon
