#include "scheduler/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

using ::testing::HasSubstr;

TEST(ShareTest, GivesOneUserAllButTheReserve) {
  Share share("limits.things", 64);
  EXPECT_EQ(share.left_for("uid 1"), 56u);
  share.add("uid 1", 56);
  EXPECT_EQ(share.left_for("uid 1"), 0u);
  EXPECT_EQ(share.check("uid 1").code(), StatusCode::kRESOURCE_EXHAUSTED);
}

TEST(ShareTest, KeepsTheReserveForThoseBelowTheirFloor) {
  Share share("limits.things", 64);
  share.add("uid 1", 56);
  EXPECT_EQ(share.left_for("uid 2"), 2u);
  share.add("uid 2", 2);
  EXPECT_FALSE(share.check("uid 2").ok());
  EXPECT_TRUE(share.check("uid 3", 2).ok());
  EXPECT_FALSE(share.check("uid 3", 3).ok());
}

TEST(ShareTest, NeverGivesMoreThanThereIs) {
  Share share("limits.things", 64);
  for (int user = 0; user < 32; ++user) share.add("uid " + std::to_string(user), 2);
  EXPECT_EQ(share.left_for("uid 99"), 0u);
  share.add("uid 99", 5);  // the limit was lowered, say
  EXPECT_EQ(share.left_for("uid 99"), 0u);
  EXPECT_EQ(share.left_for("uid 100"), 0u);
}

TEST(ShareTest, OfOneIsAnybodys) {
  const Share share("limits.things", 1);
  EXPECT_TRUE(share.check("uid 1").ok());
}

TEST(ShareTest, RefusesWithTheLimitAndWhoHasHowMuch) {
  Share share("limits.things", 64);
  share.add("uid 1", 50);
  share.add("uid 0 in /a/b", 6);
  const std::string text = share.check("uid 1").message();
  EXPECT_THAT(text, HasSubstr("limits.things is 64: 56 taken (50 by uid 1, 6 by uid 0 in /a/b)"));
  EXPECT_THAT(text, HasSubstr("0 left for uid 1"));
  EXPECT_THAT(text, HasSubstr("raise it"));
}

}  // namespace
}  // namespace cgx::scheduler
