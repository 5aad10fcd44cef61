#include "daemon/transports.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>

#include "config/config.h"
#include "daemon/net/interfaces.h"
#include "proto/wire/unique_fd.h"
#include "tests/daemon/base/scratch_directory.h"
#include "transport/tcp.h"

namespace cgx::daemon {
namespace {

std::string chosen(const std::string& transport) {
  v1::Config config;
  const Status loaded =
      config::load_text("transport: " + transport, "c.yaml", config::Checks{}, config);
  EXPECT_TRUE(loaded.ok()) << loaded.to_string();
  config::fill_defaults(config);
  const Result<TransportChoice> choice = choose_transport(config);
  return choice.ok() ? choice->name : choice.status().to_string();
}

TEST(ChooseTransport, AutoIsTcpUnlessRdmaIsConfigured) {
  EXPECT_EQ(chosen("{}"), "tcp");
  EXPECT_EQ(chosen("{name: auto}"), "tcp");
  EXPECT_EQ(chosen("{ucx_transports: [tcp]}"), "tcp");
  EXPECT_EQ(chosen("{ucx_transports: [rc]}"), "ucx");
  EXPECT_EQ(chosen("{ucx_transports: [tcp, rc], devices: [mlx5_0]}"), "ucx");
}

TEST(ChooseTransport, WhatTheOperatorNamesIsTaken) {
  EXPECT_EQ(chosen("{name: ucx}"), "ucx");
  EXPECT_EQ(chosen("{name: tcp, ucx_transports: [rc]}"), "tcp");
  EXPECT_NE(chosen("{name: pigeons}").find("auto, ucx, tcp"), std::string::npos);
}

struct NoEvents final : transport::Events {
  void on_frame(transport::PeerId, const transport::Frame&) override {}
  void on_sent(transport::PeerId, transport::SendToken, const Status&) override {}
  void on_peer_down(transport::PeerId, const Status&) override {}
};

// Where others are told to dial a daemon that trusts `networks` and loopback.
std::string advertised(const std::string& listen, const std::string& networks) {
  v1::Config config;
  const Status loaded = config::load_text(
      "mesh: {listen: '" + listen + "', trusted_networks: [127.0.0.0/8" + networks + "]}", "c.yaml",
      config::Checks{}, config);
  EXPECT_TRUE(loaded.ok()) << loaded.to_string();
  config::fill_defaults(config);
  Result<TransportChoice> choice = choose_transport(config);
  if (!choice.ok()) return choice.status().to_string();
  NoEvents events;
  const auto made = choice->make(events);
  if (!made.ok()) return made.status().to_string();
  const std::vector<std::byte> address = (*made)->local_endpoint()->address;
  return {reinterpret_cast<const char*>(address.data()), address.size()};
}

TEST(ChooseTransport, OthersAreNotSentToLoopbackWhereThereIsMore) {
  const std::string near = "127.0.0.1 ";
  EXPECT_NE(advertised("0.0.0.0:0", "").find(near), std::string::npos) << "there is nothing else";
  std::string far;
  for (const InterfaceAddress& each : interface_addresses()) {
    const bool ipv4 = each.host.find(':') == std::string::npos;
    if (ipv4 && !NetworkList::loopback().contains(each.host)) far = each.host;
  }
  if (far.empty()) GTEST_SKIP() << "this machine has no address but loopback's";
  const std::string told = advertised("0.0.0.0:0", ", " + far + "/32");
  EXPECT_NE(told.find(far + " "), std::string::npos) << told;
  EXPECT_EQ(told.find(near), std::string::npos) << told;
  EXPECT_NE(advertised("127.0.0.1:0", ", " + far + "/32").find(near), std::string::npos)
      << "daemons meet there";
}

// This machine's interfaces with an IPv4 address: loopback's, and one that is not (or "").
std::pair<std::string, std::string> near_and_far() {
  std::pair<std::string, std::string> found;
  for (const InterfaceAddress& each : interface_addresses()) {
    const bool near = NetworkList::loopback().contains(each.host);
    if (each.host.find(':') == std::string::npos) {
      (near ? found.first : found.second) = each.interface;
    }
  }
  return found;
}

// What UCX is given by a daemon that trusts loopback only.
std::vector<std::string> devices(const std::string& transport, const std::string& rdma) {
  v1::Config config;
  const Status loaded = config::load_text(
      "{mesh: {listen: '127.0.0.1:0', trusted_networks: [127.0.0.0/8]}, transport: " + transport +
          "}",
      "c.yaml", config::Checks{}, config);
  EXPECT_TRUE(loaded.ok()) << loaded.to_string();
  config::fill_defaults(config);
  const Result<std::vector<std::string>> found = ucx_devices(config, rdma);
  if (!found.ok()) return {found.status().to_string()};
  return *found;
}

class UcxDevices : public ::testing::Test {
 protected:
  using Names = std::vector<std::string>;

  UcxDevices() {
    std::filesystem::create_directories(rdma_ + "/mlx5_0/ports/1");
    std::filesystem::create_directories(rdma_ + "/mlx5_1/ports/1");
    std::filesystem::create_directories(rdma_ + "/mlx5_1/ports/2");
  }
  Names given(const std::string& transport) { return devices(transport, rdma_); }

  ScratchDirectory scratch_;
  const std::string rdma_ = scratch_.path() + "/infiniband";
  const std::string near_ = near_and_far().first, far_ = near_and_far().second;
};

TEST_F(UcxDevices, OfTcpLieInsideTheTrustedNetworksWhateverElseThereIs) {
  EXPECT_EQ(given("{ucx_transports: [tcp]}"), Names{near_});
  const Names all{"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", near_};
  EXPECT_EQ(given("{ucx_transports: [tcp, rc]}"), all);
  EXPECT_EQ(given("{ucx_transports: [rc, ud, tcp]}"), all);
  EXPECT_EQ(devices("{ucx_transports: [tcp, rc]}", rdma_ + "/nothing"), Names{near_});
}

TEST_F(UcxDevices, OfRdmaAreAllThereAreUnlessTheyAreNamed) {
  EXPECT_EQ(given("{ucx_transports: [rc]}"), Names{});
  EXPECT_EQ(given("{ucx_transports: [rc], devices: [mlx5_1]}"), Names{"mlx5_1"});
  EXPECT_EQ(given("{ucx_transports: [rc, tcp], devices: [mlx5_1]}"), Names{"mlx5_1"});
}

TEST_F(UcxDevices, ThatAreNamedAreLeftOutWhereTcpWouldListenOutside) {
  if (far_.empty()) GTEST_SKIP() << "this machine has no interface but loopback";
  const std::string three = "devices: [" + far_ + ", mlx5_0, " + near_ + "]}";
  EXPECT_EQ(given("{ucx_transports: [tcp, rc], " + three), (Names{"mlx5_0", near_}));
  const Names refused = given("{ucx_transports: [tcp, rc], devices: [" + far_ + "]}");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_NE(refused[0].find("transport.devices: none of " + far_), std::string::npos) << refused[0];
}

// Silent strangers at the data path's door have half of the reserve, and a few more.
TEST(ChooseTransport, StrangersLeaveTheLastDescriptorsToOthers) {
  v1::Config config;
  config.mutable_mesh()->set_listen("127.0.0.1:0");
  config.mutable_mesh()->add_trusted_networks("127.0.0.0/8");
  config::fill_defaults(config);
  Result<TransportChoice> choice = choose_transport(config);
  ASSERT_TRUE(choice.ok()) << choice.status().to_string();
  NoEvents events;
  const auto made = choice->make(events);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const std::vector<std::byte> address = (*made)->local_endpoint()->address;
  const std::string words(reinterpret_cast<const char*>(address.data()), address.size());
  sockaddr_in door{};
  door.sin_family = AF_INET;
  door.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  door.sin_port = htons(static_cast<uint16_t>(std::stoi(words.substr(words.find(' ') + 1))));

  constexpr int kFiles = 512, kReserve = 64, kStrangers = 60;
  std::vector<UniqueFd> strangers, others;
  for (int i = 0; i < kStrangers; ++i) {  // of several hosts
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + static_cast<uint32_t>(i % 3));
    const auto* plain = reinterpret_cast<const sockaddr*>(&own);
    ASSERT_EQ(::bind(strangers.back().get(), plain, sizeof own), 0);
  }
  while (others.empty() || others.back().get() < kFiles - kReserve - 1) {
    others.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  for (const UniqueFd& each : strangers) {
    ASSERT_EQ(::connect(each.get(), reinterpret_cast<const sockaddr*>(&door), sizeof door), 0);
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{kFiles, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int i = 0; i < 100; ++i) (*made)->progress();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  int taken = 0;
  for (int fd = kFiles - kReserve; fd < kFiles; ++fd) taken += ::fcntl(fd, F_GETFD) >= 0;
  EXPECT_GE(taken, 4);
  EXPECT_LE(taken, kReserve / 2 + 4);
}

// Eight cards and a network for management are nothing unusual.
TEST(ChooseTransport, MoreAddressesThanATransportTakesAreCut) {
  v1::Config config;
  config.mutable_mesh()->set_listen("10.0.0.11:7070");
  std::vector<InterfaceAddress> many;
  for (int i = 1; i <= 11; ++i) many.push_back({"eth", "10.0.0." + std::to_string(i)});
  const std::vector<std::string> hosts = hosts_of(config, many);
  ASSERT_EQ(hosts.size(), transport::kTcpHostsMax);
  EXPECT_EQ(hosts.front(), "10.0.0.11") << "where the mesh listens";
  EXPECT_EQ(hosts.back(), "10.0.0.7");
}

}  // namespace
}  // namespace cgx::daemon
