// Frames ask for each peer whether its link is still connecting.
#include "daemon/data/connecting_links.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

TEST(ConnectingLinksTest, KnowsThePeersOfLinksThatAreConnectingAndNoOthers) {
  ConnectingLinks links;
  EXPECT_EQ(links.find({0, 1}), 0u);
  links.add({3, 1}, 7);
  links.add({5, 2}, 8);
  EXPECT_EQ(links.find({3, 1}), 7u);
  EXPECT_EQ(links.find({5, 2}), 8u);
  EXPECT_EQ(links.find({4, 1}), 0u);
  EXPECT_EQ(links.find({6, 1}), 0u);
  EXPECT_EQ(links.find({3, 2}), 0u) << "another peer that has its number now";
  links.remove({3, 2});
  links.remove({3, 1});
  links.remove({3, 1});
  EXPECT_EQ(links.find({3, 1}), 0u);
  EXPECT_EQ(links.find({5, 2}), 8u);
  links.remove({5, 2});
  EXPECT_EQ(links.find({5, 2}), 0u);
}

}  // namespace
}  // namespace cgx::daemon
