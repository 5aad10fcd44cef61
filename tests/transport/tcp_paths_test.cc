// Connections that carry nothing, little, or one way only: replaced, or kept where that is enough.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "tests/transport/tcp_pair.h"

namespace cgx::transport {
namespace {

constexpr std::chrono::milliseconds kReplaced(3500);  // before the link would be lost

// As when an interface has been away: TCP would wait for its next try, and longer each time.
TEST_F(TcpTest, ASilentConnectionIsReplaced) {
  open_pair_with_relay();
  exchange();
  const std::vector<std::byte> payload(100'000, std::byte{3});
  relay->stall();
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  const auto began = Clock::now();
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 2 && a.events.sent.size() == 1; }));
  EXPECT_LT(Clock::now() - began, kReplaced);
  EXPECT_TRUE(a.events.sent[0].status.ok());
  exchange();
}

constexpr uint32_t kSmallBytes = 1000;

// The system of whoever has this socket takes in no data, or none of segments that are so small,
// and says so to nobody; acknowledgements still pass.
void lose_what_comes(int socket, uint32_t small_bytes = UINT32_MAX / 2) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),  // TCP's header in words, << 4
                        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
                        BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 2),
                        BPF_STMT(BPF_MISC | BPF_TAX, 0),
                        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                        BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0),
                        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, small_bytes, 1, 0),
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
  const size_t frames = from.events.frames.size();
  size_t beats = 0;
  ASSERT_TRUE(from.transport->send(from.peer, {to_bytes("x"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] {
    if (Clock::now() > next) {  // heartbeats of the other side
      EXPECT_TRUE(to.transport->send(to.peer, {to_bytes("beat"), {}}, kNoToken).ok());
      next += std::chrono::milliseconds(100);
      ++beats;
    }
    return to.events.frames.size() == 2;
  }));
  EXPECT_LT(Clock::now() - began, kReplaced);
  EXPECT_TRUE(until([&] { return from.events.frames.size() == frames + beats; }));
  exchange();
}

INSTANTIATE_TEST_SUITE_P(Ways, TcpOneWay, ::testing::Values(Way::kToTarget, Way::kToDialer),
                         [](const auto& info) {
                           return std::string(info.param == Way::kToTarget ? "out" : "back");
                         });

// As behind a packet that a full queue has lost on the way: nothing can be handed on, yet the path
// carries. What the transport makes of it takes such a queue: tests/e2e/outages_test.py.
TEST_F(TcpTest, SegmentsBehindAGapCountOnEitherSide) {
  open_pair();
  exchange();
  const std::vector<int> accepted = connections_at(door(b), true);
  const std::vector<int> dialed = connections_at(door(b), false);
  ASSERT_EQ(accepted.size(), 1u);
  ASSERT_EQ(dialed.size(), 1u);
  const uint32_t came = path_of(accepted[0]).came, arrived = path_of(dialed[0]).arrived;
  lose_what_comes(accepted[0], kSmallBytes);
  const std::vector<std::byte> payload(2 * kSmallBytes, std::byte{3});
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("lost"), {}}, kNoToken).ok());
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(until(
      [&] { return path_of(accepted[0]).came > came && path_of(dialed[0]).arrived > arrived; }));
  EXPECT_EQ(b.events.frames.size(), 1u);
}

// Where one socket of this process waits for an answer to its dial; empty: none does.
std::string dialing_from() {
  for (int each = 0; each < 1024; ++each) {
    tcp_info info{};
    socklen_t bytes = sizeof info;
    const bool is_tcp = ::getsockopt(each, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0;
    if (is_tcp && info.tcpi_state == TCP_SYN_SENT) return own_address(each).text();
  }
  return {};
}

// As after a fail-over: only a dial that is given this time is answered, the second time it asks.
TEST_F(TcpTest, ALinkGoesOnWhereTheWayHasBecomeLonger) {
  constexpr std::chrono::milliseconds kAnswered(900);
  open_pair_with_relay({.lost_ms = 10'000});
  exchange();
  relay->answer_dials(false);
  relay->cut();
  std::string dial;
  Clock::time_point since;
  ASSERT_TRUE(until([&] {
    if (const std::string now = dialing_from(); now != dial) {
      dial = now;
      since = Clock::now();
    }
    relay->answer_dials(!dial.empty() && Clock::now() - since >= kAnswered);
    return relay->connections() > 0;
  }));
  relay->answer_dials(true);
  exchange();
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

// As when a firewall is loaded anew, or an address is another host's for a moment.
TEST_F(TcpTest, AMomentInWhichDialsAreRefusedEndsNoLink) {
  open_pair_with_relay();
  exchange();
  relay->refuse_dials(true);
  relay->cut();
  const auto began = Clock::now();
  until([&] { return Clock::now() - began > std::chrono::milliseconds(40); });
  relay->refuse_dials(false);
  exchange();
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

TEST_F(TcpTest, ALinkWhosePeerRefusesAllDialsIsLostAtOnce) {
  open_pair_with_relay();
  exchange();
  relay->refuse_dials(true);
  relay->cut();
  const auto began = Clock::now();
  ASSERT_TRUE(until([&] { return !a.events.downs.empty(); }));
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(2000));  // lost_ms are 4000
  EXPECT_EQ(a.events.downs[0].why.message(), "machine 2: its process is gone");
}

// Somebody's doors at which nobody answers.
class TcpSilentDoors : public TcpTest {
 protected:
  void add_silent_doors(int count) {
    for (; count > 0; --count) {
      Result<Socket> listener = listen_at("127.0.0.1", 0, 0, {});
      ASSERT_TRUE(listener.ok()) << listener.status().to_string();
      let_in(listener->get(), false);
      doors.push_back(own_address(listener->get()));
      listeners.push_back(std::move(*listener));
    }
  }
  std::vector<Socket> listeners;
};

TEST_F(TcpSilentDoors, AreAllTriedBeforeANewLinkIsLost) {
  open(a, {.lost_ms = 3000});
  open(b, {.lost_ms = 3000});
  add_silent_doors(5);
  doors.push_back(door(b));
  join(a, b);
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return !b.events.frames.empty() || !a.events.downs.empty(); }));
  EXPECT_TRUE(a.events.downs.empty()) << a.events.downs[0].why.to_string();
}

// Somebody else's service, or a proxy that answers every dial.
TEST_F(TcpSilentDoors, ThatAnswerDialsLeaveTimeForTheOthers) {
  open(a, {.lost_ms = 3000});
  open(b, {.lost_ms = 3000});
  add_silent_doors(2);
  for (const Socket& each : listeners) let_in(each.get(), true);
  doors.push_back(door(b));
  join(a, b);
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return !b.events.frames.empty() || !a.events.downs.empty(); }));
  EXPECT_TRUE(a.events.downs.empty()) << a.events.downs[0].why.to_string();
}

TEST_F(TcpSilentDoors, AreNamedWhenTheLinkIsLost) {
  open(a, {.lost_ms = 500});
  open(b);
  add_silent_doors(2);
  join(a, b);
  ASSERT_TRUE(until([&] { return !a.events.downs.empty(); }));
  EXPECT_EQ(a.events.downs[0].why.message(),
            "machine 2: no answer in time; tried " + doors[0].text() + ", " + doors[1].text());
}

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
