#include "daemon/net/networks.h"

#include <gtest/gtest.h>

#include "daemon/net/tcp_listener.h"
#include "proto/wire/cores.h"

namespace cgx::daemon {
namespace {

TEST(NetworkListTest, ContainsAddressesOfItsNetworksOnly) {
  const auto list = NetworkList::parse({"10.1.0.0/16", "192.168.1.7", "fd00:1::/32"});
  ASSERT_TRUE(list.ok());
  EXPECT_TRUE(list->contains("10.1.255.1"));
  EXPECT_FALSE(list->contains("10.2.0.1"));
  EXPECT_TRUE(list->contains("192.168.1.7"));
  EXPECT_FALSE(list->contains("192.168.1.8"));
  EXPECT_TRUE(list->contains("fd00:1:2::3"));
  EXPECT_FALSE(list->contains("fd00:2::"));
  EXPECT_FALSE(list->contains("example.org"));
}

TEST(NetworkListTest, SeesIpv4InsideIpv6) {
  EXPECT_TRUE(NetworkList::loopback().contains("::ffff:127.0.0.1"));
}

TEST(NetworkListTest, NamesWhatIsNoNetwork) {
  for (const char* text : {"10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/", "x"}) {
    const auto list = NetworkList::parse({text});
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_NE(list.status().message().find(text), std::string::npos);
  }
}

TEST(HostOfTest, TakesThePortOff) {
  EXPECT_EQ(host_of("10.0.0.3:7701"), "10.0.0.3");
  EXPECT_EQ(host_of("[fd00::1]:7701"), "fd00::1");
  EXPECT_EQ(host_of("nothing"), "");
}

TEST(TcpListenerTest, ChoosesAPortAndTellsWhereItIsReached) {
  const auto listener = TcpListener::open("127.0.0.1:0", "mesh.listen");
  ASSERT_TRUE(listener.ok());
  EXPECT_GT(listener->port, 0);
  EXPECT_EQ(reachable_addresses(*listener, NetworkList::loopback()),
            (std::vector<std::string>{"127.0.0.1:" + std::to_string(listener->port)}));
}

TEST(TcpListenerTest, RefusesATakenPortAndNamesTheKey) {
  const auto first = TcpListener::open("127.0.0.1:0", "mesh.listen");
  const auto second = TcpListener::open("127.0.0.1:" + std::to_string(first->port), "mesh.listen");
  EXPECT_EQ(second.status().code(), StatusCode::kUNAVAILABLE);
  EXPECT_NE(second.status().message().find("mesh.listen"), std::string::npos);
}

TEST(TcpListenerTest, AdvertisesInterfacesOfTrustedNetworksWhenItListensEverywhere) {
  const auto listener = TcpListener::open("0.0.0.0:0", "mesh.listen");
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(reachable_addresses(*listener, NetworkList::loopback()),
            (std::vector<std::string>{"127.0.0.1:" + std::to_string(listener->port)}));
  EXPECT_TRUE(reachable_addresses(*listener, *NetworkList::parse({"203.0.113.0/24"})).empty());
}

TEST(CoresTest, ReadsQuotas) {
  EXPECT_EQ(cores_of_quota("150000 100000"), 1u);
  EXPECT_EQ(cores_of_quota("400000 100000"), 4u);
  EXPECT_EQ(cores_of_quota("50000 100000"), 1u);
  EXPECT_EQ(cores_of_quota("max 100000"), UINT32_MAX);
  EXPECT_EQ(cores_of_quota("-1 100000"), UINT32_MAX);
  EXPECT_EQ(cores_of_quota(""), UINT32_MAX);
  EXPECT_GE(usable_cores(), 1u);
}

}  // namespace
}  // namespace cgx::daemon
