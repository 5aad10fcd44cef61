#include "daemon/base/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cgx::daemon {
namespace {

TEST(MailboxTest, HandsMessagesOverInOrderAndBounded) {
  Mailbox<int> mailbox(3);
  EXPECT_TRUE(mailbox.post(1) && mailbox.post(2) && mailbox.post(3));
  EXPECT_FALSE(mailbox.post(4));
  std::vector<int> seen;
  EXPECT_EQ(mailbox.drain(2, [&](int value) { seen.push_back(value); }), 2);
  EXPECT_TRUE(mailbox.post(5));
  EXPECT_EQ(mailbox.drain(10, [&](int value) { seen.push_back(value); }), 2);
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 5}));
  EXPECT_TRUE(mailbox.empty());
}

TEST(MailboxTest, PostWaitWaitsForRoomAndLosesNothing) {
  constexpr int kCount = 20'000;
  Mailbox<int> mailbox(2);
  std::thread sender([&] {
    for (int i = 0; i < kCount; ++i) EXPECT_TRUE(mailbox.post_wait(i));
  });
  int next = 0;
  while (next < kCount) mailbox.drain(8, [&](int value) { ASSERT_EQ(value, next++); });
  sender.join();
}

TEST(MailboxTest, ClosingReleasesWhoWaits) {
  Mailbox<int> mailbox(1);
  ASSERT_TRUE(mailbox.post(1));
  std::thread sender([&] { EXPECT_FALSE(mailbox.post_wait(2)); });
  mailbox.close();
  sender.join();
  EXPECT_FALSE(mailbox.post(3));
}

}  // namespace
}  // namespace cgx::daemon
