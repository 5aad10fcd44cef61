#include "client/cluster.h"

#include <gtest/gtest.h>

namespace cgx::client {
namespace {

TEST(Cluster, IsSeveralMachinesWhereTheLauncherDoesNotSayOne) {
  EXPECT_FALSE(several_machines({}));
  EXPECT_TRUE(several_machines({.host = "10.1.0.2"}));
  EXPECT_FALSE(several_machines({.host = "10.1.0.2", .ranks = 1}));
  EXPECT_TRUE(several_machines({.host = "10.1.0.2", .ranks = 4}));
  EXPECT_FALSE(several_machines({.host = "10.1.0.2", .ranks = 4, .local_ranks = 4}));
  EXPECT_TRUE(several_machines({.host = "10.1.0.2", .ranks = 4, .local_ranks = 2}));
  EXPECT_FALSE(several_machines({.host = "10.1.0.2", .machines = 1}));
  EXPECT_TRUE(several_machines({.machines = 2}));
}

TEST(Cluster, HasRanksElsewhereOnlyWhereTheLauncherLeavesNoDoubt) {
  EXPECT_FALSE(some_elsewhere({}, 4));
  EXPECT_FALSE(some_elsewhere({.host = "10.1.0.2", .ranks = 4}, 4));
  EXPECT_FALSE(some_elsewhere({.ranks = 4, .local_ranks = 2}, 2));
  EXPECT_TRUE(some_elsewhere({.ranks = 4, .local_ranks = 2}, 4));
  EXPECT_FALSE(some_elsewhere({.ranks = 1, .local_ranks = 1}, 4)) << "a script started them";
  EXPECT_FALSE(some_elsewhere({.machines = 2, .step_ranks = 2, .step_machines = 2}, 4));
  EXPECT_FALSE(some_elsewhere({.machines = 2}, 4));
  EXPECT_FALSE(some_elsewhere({.machines = 2, .step_ranks = 4, .step_machines = 1}, 4));
  EXPECT_FALSE(some_elsewhere({.machines = 2, .step_ranks = 4, .step_machines = 2}, 2));
  EXPECT_TRUE(some_elsewhere({.machines = 2, .step_ranks = 4, .step_machines = 2}, 4));
}

TEST(Cluster, NetworkIsTheOneSaidOrNoneOnLoopback) {
  EXPECT_EQ(cluster_network({.network = "10.9.0.0/16", .ranks = 1}), "10.9.0.0/16");
  EXPECT_EQ(cluster_network({.host = "127.0.0.1", .ranks = 4}), "");
  EXPECT_EQ(cluster_network({.host = "localhost", .ranks = 4, .local_ranks = 1}), "");
  EXPECT_EQ(cluster_network({.machines = 2}), "");
  EXPECT_EQ(cluster_network({.host = "no.such.host.invalid", .ranks = 4}), "");
}

TEST(Cluster, HostOfOpenMpisAddress) {
  EXPECT_EQ(host_of_uri("1234.0;tcp://10.1.0.2,172.17.0.1:41023"), "10.1.0.2");
  EXPECT_EQ(host_of_uri("1234.0;tcp://10.1.0.2:41023"), "10.1.0.2");
  EXPECT_EQ(host_of_uri("1234.0;unix:///tmp/x"), "");
  EXPECT_EQ(host_of_uri(""), "");
}

}  // namespace
}  // namespace cgx::client
