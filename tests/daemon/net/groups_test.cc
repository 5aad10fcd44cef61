#include "daemon/net/groups.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

TEST(FindGroup, TakesANameOrANumber) {
  EXPECT_EQ(*find_group("client.socket_group", "root"), 0u);
  EXPECT_EQ(*find_group("client.socket_group", "4242"), 4242u);
  EXPECT_EQ(*find_group("client.socket_group", ""), kNoGroup);
}

TEST(FindGroup, NamesTheKeyOfAGroupThatIsNotThere) {
  for (const char* text : {"nobody-here", "99999999999", "12x"}) {
    const Result<gid_t> found = find_group("control.operators_group", text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_EQ(found.status().message(), "control.operators_group: there is no group " +
                                            std::string(text) +
                                            " on this machine (getent group lists them)");
  }
}

}  // namespace
}  // namespace cgx::daemon
