// Connections that carry nothing, little, or one way only: replaced, or kept where that is enough.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include "tests/transport/tcp_pair.h"

namespace cgx::transport {
namespace {

// As when an interface has been away: TCP would wait for its next try, and longer each time.
TEST_F(TcpTest, ASilentConnectionIsReplaced) {
  open_pair_with_relay();
  exchange();
  const std::vector<std::byte> payload(100'000, std::byte{3});
  relay->stall();
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  const auto began = Clock::now();
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 2 && a.events.sent.size() == 1; }));
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(2500));
  EXPECT_TRUE(a.events.sent[0].status.ok());
  exchange();
}

// The system of whoever has this socket takes no data in, and says so to nobody; acknowledgements
// still pass.
void lose_what_comes(int socket) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),  // TCP's header in words, << 4
                        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
                        BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 2),
                        BPF_STMT(BPF_MISC | BPF_TAX, 0),
                        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_X, 0, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, 0),
                        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const sock_fprog program{.len = std::size(code), .filter = code};
  ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

// Of this process, those connected at the door or, if not `accepted`, to it.
std::vector<int> connections_at(const SocketAddress& door, bool accepted) {
  std::vector<int> found;
  for (int each = 0; each < 1024; ++each) {
    const SocketAddress peer = peer_address(each);
    if (peer.bytes == 0) continue;
    if ((accepted ? own_address(each) : peer).text() == door.text()) found.push_back(each);
  }
  return found;
}

class TcpOneWay : public TcpTest, public ::testing::WithParamInterface<Way> {};

// TCP doubles its wait with every loss in a row, and soon waits longer than a link may be silent,
// whatever goes the other way.
TEST_P(TcpOneWay, AConnectionThatLosesWhatGoesOneWayIsReplaced) {
  open_pair();
  exchange();
  const std::vector<int> before = connections_at(door(b), GetParam() == Way::kToTarget);
  ASSERT_EQ(before.size(), 1u);
  lose_what_comes(before[0]);
  Side &from = GetParam() == Way::kToTarget ? a : b, &to = GetParam() == Way::kToTarget ? b : a;
  const auto began = Clock::now();
  auto next = began;
  ASSERT_TRUE(from.transport->send(from.peer, {to_bytes("x"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] {
    if (Clock::now() > next) {  // heartbeats of the other side
      EXPECT_TRUE(to.transport->send(to.peer, {to_bytes("beat"), {}}, kNoToken).ok());
      next += std::chrono::milliseconds(100);
    }
    return to.events.frames.size() == 2;
  }));
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(2000));
  exchange();
}

INSTANTIATE_TEST_SUITE_P(Ways, TcpOneWay, ::testing::Values(Way::kToTarget, Way::kToDialer),
                         [](const auto& info) {
                           return std::string(info.param == Way::kToTarget ? "out" : "back");
                         });

// Slower than any limit for a record, and not silent.
TEST_F(TcpTest, ALongFrameOnASlowPathKeepsItsConnection) {
  open_pair_with_relay();
  exchange();
  relay->bytes_per_second = 100'000;
  const std::vector<std::byte> payload(200'000, std::byte{3});
  ASSERT_TRUE(b.transport->send(b.peer, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("beat"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return a.events.frames.size() == 2; }));
  EXPECT_EQ(b.transport->totals().connections_lost, 0u);
  EXPECT_EQ(relay->connections(), 1u);
  EXPECT_GT(a.events.pieces, 20u);
}

}  // namespace
}  // namespace cgx::transport
