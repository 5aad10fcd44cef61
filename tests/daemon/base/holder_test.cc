#include "daemon/base/holder.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

TEST(HolderTest, IsTheUserWhereIdsAreTheirOwn) {
  EXPECT_EQ(holder_name(1000, ""), "uid 1000");
  EXPECT_EQ(holder_name(1000, "0::/system.slice/train.service\n"), "uid 1000");
  EXPECT_EQ(holder_name(0, "0::/\n"), "uid 0");
  EXPECT_EQ(holder_name(0, "junk\n:\n0:\n"), "uid 0");
}

// Whoever logs in may make control groups below these.
TEST(HolderTest, IsTheUserInLoginSessions) {
  const char* const session = "0::/user.slice/user-0.slice/session-3.scope/many\n";
  EXPECT_EQ(holder_name(0, session), "uid 0");
  const std::string container(64, 'a');
  EXPECT_EQ(holder_name(7, "0::/user.slice/user-7.slice/libpod-" + container + ".scope"), "uid 7");
}

TEST(HolderTest, IsTheContainerWhereUsersOfSeveralShareAnId) {
  const std::string id = "3f2a81c09d11" + std::string(52, '0');
  EXPECT_EQ(holder_name(1000, "0::/system.slice/docker-" + id + ".scope\n"),
            "uid 1000 in container 3f2a81c09d11");
  EXPECT_EQ(holder_name(0, "5:memory:/kubepods/burstable/pod12-34/" + id + "/below\n0::/\n"),
            "uid 0 in container 3f2a81c09d11");
}

TEST(HolderTest, IsTheServiceForRoot) {
  EXPECT_EQ(holder_name(0, "0::/system.slice/train.service/a/b\n"),
            "uid 0 in /system.slice/train.service");
  EXPECT_EQ(holder_name(0, "4:memory:/jobs\n0::/\n"), "uid 0 in /jobs");
}

TEST(HolderTest, BelongsToItsUserOnly) {
  EXPECT_TRUE(is_of("uid 10", 10));
  EXPECT_TRUE(is_of("uid 10 in container 3f2a81c09d11", 10));
  EXPECT_FALSE(is_of("uid 100", 10));
  EXPECT_FALSE(is_of("10.0.0.1", 10));
}

TEST(HolderTest, OfAProcessThatIsHiddenIsTheUser) {
  EXPECT_EQ(holder_of(5, 0), "uid 5");
}

}  // namespace
}  // namespace cgx::daemon
