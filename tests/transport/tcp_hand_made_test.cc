// Peers that hold the key and do what no daemon does: late words, none at all, a flood.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "tests/transport/tcp_pair.h"
#include "transport/tcp_handshake.h"
#include "transport/tcp_seal.h"

namespace cgx::transport {
namespace {

using ::testing::HasSubstr;

// A dialer by hand. It holds the key, so it may say what it likes, when it likes.
class HandMadePeer {
 public:
  HandMadePeer(Transport& transport, const SocketAddress& door, uint64_t tag,
               const LinkSecret& secret)
      : wire_(connect_to(door)), secret_(secret), hello_{.tag = tag, .nonce = new_tcp_nonce()} {
    send(hello_);
    while (::recv(wire_.get(), &welcome_, sizeof welcome_, MSG_DONTWAIT | MSG_WAITALL) < 0) {
      transport.progress();
    }
  }
  void prove() {
    send(TcpProof{prove_tcp_dialer(secret_, hello_, welcome_)});
    sealer_.emplace(TcpSeal::kLink, make_seal_keys(secret_, hello_, welcome_).to_listener);
  }
  // A record that acknowledges nothing; what has come is read and forgotten.
  void speak() {
    say({.type = RecordType::kAck});
    hear();
  }
  void say(RecordHead head) {
    sealer_->seal(head, {}, {}, nullptr);
    send(head);
  }
  size_t hear() {
    size_t heard = 0;
    std::byte bytes[4096];
    for (;;) {
      const ssize_t count = ::recv(wire_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN)) closed_ = true;
      if (count <= 0) return heard;
      heard += static_cast<size_t>(count);
    }
  }
  void let_in(bool in) { transport::let_in(wire_.get(), in); }
  bool closed() {
    hear();
    return closed_;
  }
  // Until so many bytes are sent, or nobody takes them.
  void flood(std::atomic<size_t>& sent, size_t bytes) {
    const std::vector<std::byte> zeros(64 << 10);
    while (sent < bytes) {
      const ssize_t count = ::send(wire_.get(), zeros.data(), zeros.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

 private:
  template <typename Message>
  void send(const Message& message) {
    (void)::send(wire_.get(), &message, sizeof message, MSG_NOSIGNAL);
  }

  Socket wire_;
  const LinkSecret secret_;
  const TcpHello hello_;
  TcpWelcome welcome_;
  std::optional<Sealer> sealer_;
  bool closed_ = false;
};

// A link of a's that is dialed by hand.
struct HandMadeTest : TcpTest {
  const LinkSecret secret{std::byte{7}};
  void listen(const TcpOptions& options = {}) {
    open(a, options);
    a.peer = *a.transport->connect({.remote = *a.transport->local_endpoint(),
                                    .inbound_tag = 5,
                                    .outbound_tag = 6,
                                    .secret = secret,
                                    .name = "machine 2"});
  }
  HandMadePeer dial() { return {*a.transport, door(a), 5, secret}; }
};

// The mesh has said that both sides have connected, or nobody would send.
TEST_F(HandMadeTest, APeerThatHasNotDialedIsLostByNameOnceItIsDue) {
  listen({.lost_ms = 300});
  const auto soon = Clock::now() + std::chrono::milliseconds(600);
  until([&] { return Clock::now() >= soon; });
  EXPECT_TRUE(a.events.downs.empty()) << "nothing was to be sent";
  const std::vector<std::byte> payload(1000, std::byte{3});
  const auto began = Clock::now();
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1; }));
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(250));
  EXPECT_EQ(a.events.downs[0].why.message(),
            "machine 2: has not connected for gradients within 300 ms; it must be able to reach " +
                door(a).text());
  EXPECT_EQ(a.events.sent.size(), 1u) << "the buffer is its owner's again";
}

TEST_F(HandMadeTest, APeerMayDialAWhileAfterTheFirstFrameForIt) {
  listen({.lost_ms = 1000});
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).ok());
  const auto soon = Clock::now() + std::chrono::milliseconds(300);
  until([&] { return Clock::now() >= soon; });
  HandMadePeer late = dial();
  late.prove();
  EXPECT_TRUE(until([&] { return late.hear() > sizeof(RecordHead); }));
  EXPECT_TRUE(a.events.downs.empty());
}

TEST_F(HandMadeTest, WhatIsLateOfAGivenUpConnectionTakesNothingOver) {
  listen();
  HandMadePeer first = dial(), second = dial();
  second.prove();
  second.say({.number = 1});
  ASSERT_TRUE(until([&] { return a.events.frames.size() == 1; }));
  first.prove();
  first.say({.number = 2});
  EXPECT_TRUE(until([&] { return first.closed(); }));
  EXPECT_EQ(a.events.frames.size(), 1u);
  second.say({.number = 2});
  EXPECT_TRUE(until([&] { return a.events.frames.size() == 2; }));
  EXPECT_FALSE(second.closed());
}

TEST_F(HandMadeTest, WhatCameWhileAConnectionWasMadeAnewIsAcknowledgedOnIt) {
  listen();
  HandMadePeer first = dial();
  first.prove();
  HandMadePeer second = dial();  // whose welcome says that nothing has come
  first.say({.number = 1});
  ASSERT_TRUE(until([&] { return a.events.frames.size() == 1; }));
  second.prove();
  EXPECT_TRUE(until([&] { return second.hear() >= sizeof(RecordHead); }));
  EXPECT_FALSE(second.closed());
}

// Anybody on the peer's host can open as many; no stranger can name a link.
TEST_F(HandMadeTest, APeerThatHasNamedItsLinkIsNotPushedOutByStrangers) {
  listen({.half_open_max = 4});
  HandMadePeer peer = dial();
  std::vector<Socket> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(connect_to(door(a)));
  ASSERT_TRUE(until([&] { return a.transport->totals().connections_refused == 5; }));
  peer.prove();
  peer.say({.number = 1});
  EXPECT_TRUE(until([&] { return !a.events.frames.empty() || peer.closed(); }));
  EXPECT_EQ(a.events.frames.size(), 1u);
}

// What waits for a peer's word must not wait for ever.
TEST_F(HandMadeTest, APeerThatSpeaksButAcknowledgesNothingIsLostByName) {
  listen({.lost_ms = 400});
  HandMadePeer mute = dial();
  mute.prove();
  const std::vector<std::byte> payload(1000, std::byte{3});
  const auto began = Clock::now();
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  auto next = began;
  ASSERT_TRUE(until([&] {
    if (Clock::now() > next) {
      mute.speak();
      next += std::chrono::milliseconds(10);
    }
    return a.events.downs.size() == 1;
  }));
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(390));  // its clock is the last round's
  EXPECT_THAT(a.events.downs[0].why.message(),
              HasSubstr("machine 2: it speaks, but has acknowledged nothing for 400 ms"));
  EXPECT_EQ(a.events.sent.size(), 1u) << "the buffer is its owner's again";
}

// As after SIGSTOP, or where another machine has the processor.
TEST_F(TcpTest, AStallOfOnesOwnIsNoSilenceOfThePeer) {
  open_pair({.lost_ms = 400});
  exchange();
  const std::vector<std::byte> payload(1000, std::byte{3});
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  a.transport->progress();
  const auto began = Clock::now();
  while (Clock::now() - began < std::chrono::milliseconds(600)) b.transport->progress();
  ASSERT_EQ(b.events.frames.size(), 2u);
  ASSERT_TRUE(until([&] { return a.events.sent.size() == 1; }));
  EXPECT_TRUE(a.events.sent[0].status.ok());
  EXPECT_TRUE(a.events.downs.empty());
  EXPECT_EQ(a.transport->totals().connections_lost, 0u);
  exchange();
}

// Be it that it sends frames, or that something newer is always on its way to it.
TEST_F(HandMadeTest, APeerThatAcknowledgesNothingIsLostWhateverElseGoesOn) {
  listen({.lost_ms = 600});
  HandMadePeer mute = dial();
  mute.prove();
  const auto began = Clock::now();
  const auto pause = std::chrono::milliseconds(10);
  constexpr int kBeat = 50, kOnItsWay = 10;
  auto next = began;
  uint64_t count = 0;
  ASSERT_TRUE(until([&] {
    if (Clock::now() < next) return false;
    if (count % kBeat == 0 && a.events.downs.empty()) {
      mute.let_in(false);
      EXPECT_TRUE(a.transport->send(a.peer, {to_bytes("beat"), {}}, kNoToken).ok());
    }
    if (count % kBeat == kOnItsWay) mute.let_in(true);
    mute.say({.number = ++count});
    mute.hear();
    next += pause;
    return a.events.downs.size() == 1;
  }));
  EXPECT_THAT(a.events.downs[0].why.message(),
              HasSubstr("machine 2: it speaks, but has acknowledged nothing for 600 ms"));
}

// 8 MiB that are read in the end, and what the systems of both sides hold.
size_t taken_max() {
  size_t held = 0;
  for (const char* const name : {"tcp_rmem", "tcp_wmem"}) {
    std::ifstream file(std::string("/proc/sys/net/ipv4/") + name);
    size_t least = 0, usual = 0, most = 0;
    EXPECT_TRUE(file >> least >> usual >> most) << name;
    held += 2 * most;
  }
  return (8 << 20) + held;
}

// What a peer has sent is read in the end, so that it can read the goodbye: not all that it could.
// How much that would be is chance, so there are several.
TEST_F(HandMadeTest, ATransportEndsWhileAPeerKeepsSending) {
  const size_t most = taken_max();
  for (int round = 0; round < 20; ++round) {
    listen();
    HandMadePeer peer = dial();
    peer.prove();
    ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).ok());
    ASSERT_TRUE(until([&] { return peer.hear() > 0; }));
    std::atomic<size_t> sent = 0;
    std::atomic<bool> over = false;
    std::thread sender([&] {
      peer.flood(sent, 16 * most);
      over = true;
    });
    while (sent == 0 && !over) std::this_thread::yield();
    a.transport.reset();
    sender.join();
    ASSERT_LT(sent, most);
  }
}

}  // namespace
}  // namespace cgx::transport
