#include "daemon/net/packet_socket.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>

namespace cgx::daemon {
namespace {

constexpr size_t kBytesMax = 64;

class PacketSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  Status send(std::initializer_list<int> fds) {
    const std::string text = "hello";
    return send_packet(theirs.get(), std::as_bytes(std::span(text)), fds);
  }

  UniqueFd ours, theirs, other{::eventfd(0, EFD_CLOEXEC)};
  Packet packet;
};

TEST_F(PacketSocketTest, TakesAPacketWithItsDescriptor) {
  ASSERT_TRUE(send({other.get()}).ok());
  const auto outcome = receive_packet(ours.get(), kBytesMax, packet);
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_EQ(*outcome, ReceiveOutcome::kPacket);
  EXPECT_EQ(packet.bytes.size(), 5u);
  EXPECT_EQ(packet.fds.size(), 1u);
}

TEST_F(PacketSocketTest, TellsOfDescriptorsAndLeavesThemWhereTheyAre) {
  EXPECT_EQ(next_packet(ours.get()), NextPacket::kNone);
  ASSERT_TRUE(send({}).ok());
  ASSERT_TRUE(send({other.get(), other.get()}).ok());
  EXPECT_EQ(next_packet(ours.get()), NextPacket::kPlain);
  ASSERT_TRUE(receive_packet(ours.get(), kBytesMax, packet).ok());
  const UniqueFd before(::dup(other.get()));
  EXPECT_EQ(next_packet(ours.get()), NextPacket::kWithDescriptors);
  EXPECT_EQ(next_packet(ours.get()), NextPacket::kWithDescriptors);
  const UniqueFd after(::dup(other.get()));
  EXPECT_EQ(after.get(), before.get() + 1) << "none was installed";
  ASSERT_TRUE(receive_packet(ours.get(), kBytesMax, packet).ok());
  EXPECT_EQ(packet.fds.size(), 2u);
  EXPECT_EQ(packet.bytes.size(), 5u);
  theirs.reset();
  EXPECT_EQ(next_packet(ours.get()), NextPacket::kPlain) << "the end";
}

TEST_F(PacketSocketTest, RefusesMoreDescriptorsThanAMessageCarries) {
  ASSERT_TRUE(send({other.get(), other.get(), other.get()}).ok());
  const auto outcome = receive_packet(ours.get(), kBytesMax, packet);
  EXPECT_EQ(outcome.status().code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_EQ(packet.fds.size(), 3u) << "for the caller to close";
}

// It is not the sender's fault.
TEST_F(PacketSocketTest, SaysThatThereWasNoRoomForADescriptor) {
  ASSERT_TRUE(send({other.get()}).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto outcome = receive_packet(ours.get(), kBytesMax, packet);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(outcome.status().code(), StatusCode::kRESOURCE_EXHAUSTED)
      << outcome.status().to_string();
}

}  // namespace
}  // namespace cgx::daemon
