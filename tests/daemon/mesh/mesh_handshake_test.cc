// Keys of links: what they prove, and of what.
#include "daemon/mesh/mesh_handshake.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

TEST(LinkKeyTest, KeyIdAndProofsDependOnBothKeys) {
  wire::JobKey one{}, two{};
  one.fill(std::byte{1});
  two.fill(std::byte{2});
  EXPECT_NE(LinkKey("", one).id(), LinkKey("", two).id());
  EXPECT_NE(LinkKey("", one).id(), LinkKey("cluster", one).id());
  EXPECT_EQ(LinkKey("cluster", one).id(), LinkKey("cluster", one).id());
  EXPECT_FALSE(LinkKey("", {}).secret());
  EXPECT_TRUE(LinkKey("cluster", {}).secret());
}

TEST(LinkKeyTest, AProofCoversEveryWordOfTheIntroduction) {
  wire::JobKey job_key{};
  job_key.fill(std::byte{1});
  const LinkKey key("", job_key);
  const Introduction both{{1, "job", 7, {1, 2}, {3, 4}, {}, {}, "a"}, {}, "b"};
  const transport::Endpoint endpoint{{std::byte{1}}, "s"};
  std::vector<Introduction> changed(9, both);
  changed[0].greeting.version = 2;
  changed[1].greeting.job = "jo";
  changed[2].greeting.uid = 8;
  changed[3].greeting.from = {2, 1};
  changed[4].greeting.to = {4, 3};
  changed[5].greeting.nonce[0] = std::byte{1};
  changed[6].challenge[31] = std::byte{1};
  changed[7].greeting.name = "";
  changed[8].listener_name = "ab";
  const Mac mac = key.prove_dialer(both, endpoint);
  for (const Introduction& each : changed) {
    EXPECT_FALSE(equal_in_constant_time(mac, key.prove_dialer(each, endpoint)));
    EXPECT_NE(key.tag_to_dialer(both), key.tag_to_dialer(each));
  }
  EXPECT_FALSE(equal_in_constant_time(mac, key.prove_dialer(both, {{std::byte{1}}, "t"})));
  EXPECT_FALSE(equal_in_constant_time(mac, key.prove_listener(both, endpoint, endpoint)));
}

}  // namespace
}  // namespace cgx::daemon
