// What only tcp does: strangers at its door, networks that change, lose and repeat bytes,
// connections that are made anew. The common promises are in tests/conformance/transport_*.
#include "transport/tcp.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>

#include "tests/transport/tcp_pair.h"
#include "transport/tcp_handshake.h"

namespace cgx::transport {
namespace {

using ::testing::HasSubstr;

size_t descriptor_count() {
  size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// Frames of many sizes both ways; each side checks that all come once, in order, as they were.
class Talk {
 public:
  Talk(Transport& transport, PeerId to, uint64_t seed, uint32_t frames)
      : transport_(transport), to_(to) {
    std::mt19937_64 random(seed);
    for (uint32_t i = 0; i < frames; ++i) {
      const size_t bytes = random() % (i % 4 == 0 ? 300'000 : 3'000);
      std::vector<std::byte> payload(bytes);
      for (std::byte& each : payload) each = static_cast<std::byte>(random());
      payloads_.push_back(std::move(payload));
    }
  }
  bool sent_all() const { return next_ == payloads_.size(); }
  void send_one() {
    if (sent_all()) return;
    const std::string header = std::to_string(next_);
    const Status status = transport_.send(to_, {to_bytes(header), payloads_[next_]}, next_ + 1);
    if (status.ok()) ++next_;
  }
  bool arrived(const Recorder& there) const { return there.frames.size() == payloads_.size(); }
  void check(const Recorder& there, size_t frames) const {
    ASSERT_LE(there.frames.size(), payloads_.size());
    ASSERT_GE(there.frames.size(), frames);
    for (size_t i = 0; i < there.frames.size(); ++i) {
      ASSERT_EQ(there.frames[i].header, std::to_string(i));
      ASSERT_TRUE(there.frames[i].payload == to_text(payloads_[i])) << "frame " << i;
    }
  }

 private:
  Transport& transport_;
  const PeerId to_;
  std::vector<std::vector<std::byte>> payloads_;
  size_t next_ = 0;
};

// Strangers

TEST_F(TcpTest, JunkAtTheDoorIsRefusedAndDisturbsNobody) {
  open_pair({.handshake_ms = 100});
  exchange();
  std::mt19937 random(5);
  const TcpHello hello;
  for (int i = 0; i < 1000; ++i) {
    const Socket stranger = connect_to(door(b));
    std::vector<std::byte> junk(random() % 400);
    for (std::byte& each : junk) each = static_cast<std::byte>(random());
    // Half of it begins as it should.
    if (i % 2 && junk.size() >= 16) std::memcpy(junk.data(), &hello.magic, sizeof hello.magic);
    (void)::send(stranger.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
    tick();
    if (i % 100 == 0) exchange();
  }
  EXPECT_TRUE(until([&] { return b.transport->totals().connections_refused > 800; }));
  exchange();
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

TEST_F(TcpTest, SilentStrangersHoldFewConnectionsAndNotForLong) {
  open(a, {.handshake_ms = 500, .half_open_max = 8});
  open(b, {.handshake_ms = 500, .half_open_max = 8});
  const size_t before = descriptor_count();
  std::vector<Socket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_to(door(b)));
  ASSERT_TRUE(until([&] { return b.transport->totals().connections_refused >= 92; }));
  EXPECT_LE(descriptor_count(), before + 100 + 8);
  join(a, b);  // who knows a key is let in
  exchange();
  EXPECT_TRUE(until([&] { return b.transport->totals().connections_refused == 100; }));
  EXPECT_TRUE(until([&] { return b.transport->arm(); }));
}

TEST_F(TcpTest, WhereFewDescriptorsAreLeftFewStrangersStay) {
  bool few = false;
  const TcpOptions options{.handshake_ms = 60'000, .few_left = [&](int) { return few; }};
  open(a, options);
  open(b, options);
  few = true;
  const size_t before = descriptor_count();
  std::vector<Socket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_to(door(b)));
  ASSERT_TRUE(until([&] { return b.transport->totals().connections_refused >= 96; },
                    std::chrono::seconds(20)));
  EXPECT_EQ(descriptor_count(), before + 100 + 4);
  join(a, b);  // a peer's place is its own once it has named its link
  exchange();
  join(a, b);
  exchange();
}

// Meanwhile this process can open nothing.
class NoDescriptorFree {
 public:
  NoDescriptorFree() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const Socket next(::socket(AF_INET, SOCK_STREAM, 0));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(next.get()), .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorFree() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(TcpTest, AMomentWithoutDescriptorsPasses) {
  open(a, {.handshake_ms = 200});
  open(b, {.handshake_ms = 200});
  std::vector<Socket> strangers;
  for (int i = 0; i < 3; ++i) strangers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
  {
    const NoDescriptorFree none;
    const SocketAddress where = door(b);
    for (const Socket& each : strangers) {
      EXPECT_EQ(::connect(each.get(), where.get(), where.bytes), 0);
    }
    for (int i = 0; i < 100; ++i) b.transport->progress();
    EXPECT_TRUE(b.transport->arm()) << "it spins";
    EXPECT_EQ(b.transport->totals().connections_refused, 0u);
  }
  EXPECT_TRUE(until([&] { return b.transport->totals().connections_refused == 3; }));
  join(a, b);
  exchange();
}

TEST_F(TcpTest, WhoHasNoDescriptorToDialWithSaysSo) {
  open(a, {.lost_ms = 300});
  open(b, {.lost_ms = 60'000});
  const NoDescriptorFree none;
  join(a, b);
  ASSERT_TRUE(until([&] { return !a.events.downs.empty(); }));
  EXPECT_THAT(a.events.downs[0].why.message(),
              HasSubstr("this daemon has no descriptor left (ulimit -n)"));
}

TEST_F(TcpTest, WhoHasNoDescriptorToLetAPeerInWithSaysSo) {
  open(a, {.handshake_ms = 60'000, .lost_ms = 60'000});
  open(b, {.lost_ms = 300});
  join(a, b);  // a dials, and waits for an answer
  const NoDescriptorFree none;
  ASSERT_TRUE(b.transport->send(b.peer, {to_bytes("x"), {}}, kNoToken).ok());  // now a is missed
  ASSERT_TRUE(until([&] { return !b.events.downs.empty(); }));
  EXPECT_THAT(b.events.downs[0].why.message(),
              HasSubstr("cannot be let in: this daemon has no descriptor left (ulimit -n)"));
}

TEST_F(TcpTest, WhatWasOverheardOpensNothingWhenRepeated) {
  open_pair_with_relay();
  exchange();
  const std::vector<std::byte> overheard = relay->heard();
  ASSERT_GT(overheard.size(), sizeof(TcpHello) + sizeof(TcpProof));
  const size_t frames = b.events.frames.size();
  for (uint64_t i = 1; i <= 20; ++i) {
    const Socket stranger = connect_to(door(b));
    ASSERT_EQ(::send(stranger.get(), overheard.data(), overheard.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(overheard.size()));
    ASSERT_TRUE(until([&] { return b.transport->totals().connections_refused == i; }));
  }
  EXPECT_EQ(b.events.frames.size(), frames);
  exchange();
  EXPECT_EQ(b.transport->totals().connections_lost, 0u);
}

TEST_F(TcpTest, TheWrongSecretIsRefusedByName) {
  open(a, {.lost_ms = 300});
  open(b, {.lost_ms = 300});
  const auto connect = [](Side& from, Side& to, bool dials, uint8_t secret) {
    return *from.transport->connect({.remote = *to.transport->local_endpoint(),
                                     .inbound_tag = dials ? 1u : 2u,
                                     .outbound_tag = dials ? 2u : 1u,
                                     .secret = {std::byte{secret}},
                                     .dials = dials,
                                     .name = "machine 2"});
  };
  b.peer = connect(b, a, false, 1);
  a.peer = connect(a, b, true, 2);
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1; }));
  EXPECT_THAT(a.events.downs[0].why.message(), HasSubstr("machine 2: it does not know the link"));
  EXPECT_TRUE(b.events.frames.empty());
}

TEST_F(TcpTest, OnlyAdmittedNetworksMayDialAndAreDialed) {
  open(a);
  open(b, {.admits = [](const std::string& host) { return host == "10.0.0.1"; }});
  const Socket stranger = connect_to(door(b));
  ASSERT_TRUE(until([&] { return b.transport->totals().connections_refused == 1; }));
  const auto refused = b.transport->connect(
      {.remote = *a.transport->local_endpoint(), .inbound_tag = 1, .name = "machine 7"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("machine 7: its addresses (127.0.0.1) lie"));
}

// Networks that change bytes

class TcpTamper : public TcpTest, public ::testing::WithParamInterface<TcpSeal> {
 protected:
  // One bit of the bytes that go `way` is flipped; what arrives is right, all the same.
  void survive_flip(Way way, uint64_t offset, unsigned bit) {
    open(a, {.seal = GetParam()});
    open(b, {.seal = GetParam()});
    relay = std::make_unique<TcpRelay>(door(b));
    bool flipped = false;
    relay->tamper = [&](Way went, uint64_t first, std::span<std::byte> bytes) {
      if (went != way || offset < first || offset >= first + bytes.size()) return;
      bytes[offset - first] ^= static_cast<std::byte>(1u << bit);
      flipped = true;
    };
    join(a, b);
    Talk there(*a.transport, a.peer, offset, 8), back(*b.transport, b.peer, offset + 1, 8);
    const auto over = [&] { return there.arrived(b.events) && back.arrived(a.events); };
    ASSERT_TRUE(until([&] {
      there.send_one();
      back.send_one();
      return over();
    }));
    ASSERT_TRUE(flipped);
    there.check(b.events, 8);
    back.check(a.events, 8);
    const Transport::Totals at_a = a.transport->totals(), at_b = b.transport->totals();
    const uint64_t noticed = at_a.connections_lost + at_b.connections_lost +
                             at_a.connections_refused + at_b.connections_refused;
    EXPECT_GE(noticed + at_b.frames_dropped, 1u) << "nobody noticed";
    a = {};
    b = {};
    relay.reset();
  }
};

TEST_P(TcpTamper, FlippedBitsAreNoticedAndWhatWasSentArrivesAnyway) {
  std::mt19937 random(3);
  for (uint64_t offset = 0; offset < 400; offset += 7) {
    for (const Way way : {Way::kToTarget, Way::kToDialer}) {
      SCOPED_TRACE("byte " + std::to_string(offset) + ", way " +
                   std::to_string(static_cast<int>(way)));
      survive_flip(way, offset, random() % 8);
    }
  }
  for (int i = 0; i < 60; ++i) {
    const uint64_t offset = random() % 100'000;
    SCOPED_TRACE("byte " + std::to_string(offset));
    survive_flip(i % 2 ? Way::kToTarget : Way::kToDialer, offset, random() % 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Seals, TcpTamper,
                         ::testing::Values(TcpSeal::kLink, TcpSeal::kFrame, TcpSeal::kEncrypt),
                         [](const auto& info) { return std::string(tcp_seal_name(info.param)); });

TEST_F(TcpTest, ANetworkThatAlwaysChangesBytesLosesTheLinkByName) {
  const auto lost_after = std::chrono::milliseconds(500);
  open_pair_with_relay({.lost_ms = static_cast<uint32_t>(lost_after.count())});
  relay->tamper = [](Way way, uint64_t, std::span<std::byte> bytes) {
    if (way == Way::kToTarget && bytes.size() > 1000) bytes[bytes.size() / 2] ^= std::byte{4};
  };
  const auto began = Clock::now();
  const std::vector<std::byte> payload(5000);
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(until([&] { return a.events.downs.size() + b.events.downs.size() > 0; }));
  EXPECT_GE(Clock::now() - began, lost_after - std::chrono::milliseconds(50));
  EXPECT_TRUE(b.events.frames.empty());
  EXPECT_LE(b.transport->totals().connections_lost, 60u) << "they do nothing but connect";
  const auto& down = b.events.downs.empty() ? a.events.downs[0] : b.events.downs[0];
  EXPECT_THAT(down.why.message(), HasSubstr("machine "));
}

TEST_F(TcpTest, OnlyEncryptionHidesThePayload) {
  for (const TcpSeal seal : {TcpSeal::kLink, TcpSeal::kFrame, TcpSeal::kEncrypt}) {
    open_pair_with_relay({.seal = seal});
    const std::vector<std::byte> payload = to_bytes(std::string(2000, 'g'));
    ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("header"), payload}, 1).ok());
    ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
    const bool seen = to_text(relay->heard()).find(std::string(100, 'g')) != std::string::npos;
    EXPECT_EQ(seen, seal != TcpSeal::kEncrypt) << tcp_seal_name(seal);
    a = {};
    b = {};
  }
}

// Connections that break

TEST_F(TcpTest, ConnectionsThatBreakLoseAndDoubleNothing) {
  open_pair_with_relay({.lost_ms = 60'000});
  constexpr uint32_t kFrames = 600;
  Talk there(*a.transport, a.peer, 1, kFrames), back(*b.transport, b.peer, 2, kFrames);
  std::mt19937 random(9);
  int cuts = 0;
  size_t next = 0;  // cut when so many frames have arrived, now and then again at the next dial
  const auto arrived = [&] { return a.events.frames.size() + b.events.frames.size(); };
  ASSERT_TRUE(until(
      [&] {
        for (uint32_t burst = random() % 3; burst > 0; --burst) {
          there.send_one();
          back.send_one();
        }
        const bool again = cuts % 4 == 3 && relay->connections() > 0;
        if (cuts < 40 && (again || arrived() >= next)) {
          relay->cut();
          ++cuts;
          next = arrived() + random() % 25 + 1;
        }
        return there.arrived(b.events) && back.arrived(a.events) &&
               a.events.sent.size() == kFrames && b.events.sent.size() == kFrames;
      },
      std::chrono::seconds(60)))
      << a.events.downs.size() << " and " << b.events.downs.size() << " down after " << cuts
      << " cuts: " << (a.events.downs.empty() ? "" : a.events.downs[0].why.to_string());
  EXPECT_GE(cuts, 3);
  there.check(b.events, kFrames);
  back.check(a.events, kFrames);
  for (const Side* side : {&a, &b}) {
    for (const auto& sent : side->events.sent) EXPECT_TRUE(sent.status.ok());
  }
  EXPECT_GE(a.transport->totals().connections_lost, 3u);
}

class TcpDisowned : public TcpTest {
 protected:
  // So many greetings name another link than they should.
  void spoil_greetings(int count) {
    left = count;
    relay->tamper = [this](Way way, uint64_t, std::span<std::byte> bytes) {
      TcpHello hello;
      if (way != Way::kToTarget || left == 0 || bytes.size() < sizeof hello) return;
      std::memcpy(&hello, bytes.data(), sizeof hello);
      if (hello.magic != kTcpMagic) return;
      bytes[offsetof(TcpHello, tag)] ^= std::byte{1};
      --left;
    };
    relay->cut();
  }
  int left = 0;
};

// The peer does not know the link by the number that arrives, and says so; asked again it does. Of
// ten thousand packets with a flipped bit several meet two greetings in a row.
TEST_F(TcpDisowned, GreetingsThatChangeOnTheirWayEndNoLink) {
  open_pair_with_relay();
  exchange();
  spoil_greetings(3);
  ASSERT_TRUE(until([&] { return left == 0; }));
  exchange();
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

TEST_F(TcpDisowned, APeerThatKeepsSayingSoIsLostAtOnce) {
  open_pair_with_relay();
  exchange();
  const auto began = Clock::now();
  spoil_greetings(1000);
  ASSERT_TRUE(until([&] { return !a.events.downs.empty(); }));
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(3000));  // lost_ms are 4000
  EXPECT_THAT(a.events.downs[0].why.message(),
              HasSubstr("machine 2: the peer knows the link no more"));
}

// Asked again where it has been, whatever other addresses it has.
TEST_F(TcpDisowned, APeerOfManyAddressesThatKeepsSayingSoIsLostAtOnce) {
  open(a);
  open(b);
  relay = std::make_unique<TcpRelay>(door(b));
  doors = {address_in(relay->address())};
  std::vector<Socket> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(*listen_at("127.0.0.2", 0, 0, {}));
    let_in(silent.back().get(), false);
    doors.push_back(own_address(silent.back().get()));
  }
  join(a, b);
  exchange();
  const auto began = Clock::now();
  spoil_greetings(1000);
  ASSERT_TRUE(until([&] { return !a.events.downs.empty(); }));
  EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(2500));
  EXPECT_THAT(a.events.downs[0].why.message(), HasSubstr("the peer knows the link no more"));
}

// Loopback's addresses, and docker0's, lead to whoever has them where they are dialed.
TEST_F(TcpDisowned, WhatSomebodyElseAtAnotherAddressSaysEndsNoLink) {
  Side stranger;
  open(stranger, {.hosts = {"127.0.0.2"}});
  open(a, {.lost_ms = 10'000});
  open(b, {.lost_ms = 10'000});
  relay = std::make_unique<TcpRelay>(door(b));
  doors = {address_in(relay->address()), door(stranger)};
  join(a, b);
  exchange();
  relay->answer_dials(false);
  relay->cut();
  ASSERT_TRUE(until([&] {
    stranger.transport->progress();
    return stranger.transport->totals().connections_refused > 5 || !a.events.downs.empty();
  }));
  relay->answer_dials(true);
  ASSERT_TRUE(until([&] {
    stranger.transport->progress();
    return relay->connections() > 0 || !a.events.downs.empty();
  }));
  exchange();
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

AddressRange ipv4_range(uint8_t first) {
  AddressRange range{.bits = 96 + 8};
  range.address[10] = range.address[11] = 0xff;
  range.address[12] = first;
  return range;
}

// Each would take the thread that moves gradients some microseconds, as often as it likes.
TEST_F(TcpTest, WhoIsNotAdmittedIsDroppedByTheSystem) {
  open(b, {.admitted = {ipv4_range(10)}});
  const SocketAddress to = door(b);
  const Socket stranger(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::connect(stranger.get(), to.get(), to.bytes), -1);
  pollfd writable{.fd = stranger.get(), .events = POLLOUT, .revents = 0};
  EXPECT_EQ(::poll(&writable, 1, 200), 0)
      << "a SYN over loopback is answered at once or not at all";
}

TEST_F(TcpTest, ConnectionsOfTheAdmittedHaveNoFilterAnyMore) {
  open_pair({.admitted = {ipv4_range(10), ipv4_range(127)}});
  exchange();
  for (int each = 0; each < 1024; ++each) {
    if (peer_address(each).bytes == 0) continue;
    sock_filter program[64];
    socklen_t statements = std::size(program);
    if (::getsockopt(each, SOL_SOCKET, SO_GET_FILTER, program, &statements) != 0) continue;
    EXPECT_EQ(statements, 0u);
  }
}

TEST_F(TcpTest, NobodyDialsItself) {
  open(a);
  open(b);
  doors = {door(a), door(b)};
  join(a, b);
  exchange();
  EXPECT_EQ(a.transport->totals().connections_refused, 0u);
  const auto refused = a.transport->connect({.remote = *a.transport->local_endpoint(),
                                             .inbound_tag = 99,
                                             .dials = true,
                                             .name = "machine 7"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("machine 7: its addresses (127.0.0.1) are this daemon's own"));
}

// However many connections break on one frame: what counts is for how long.
TEST_F(TcpTest, ManyConnectionsThatBringNothingInAShortTimeAreNoFault) {
  open_pair_with_relay();
  relay->tamper = [](Way way, uint64_t, std::span<std::byte> bytes) {
    if (way == Way::kToTarget && bytes.size() > 1000) bytes[bytes.size() / 2] ^= std::byte{4};
  };
  const std::vector<std::byte> payload(5000, std::byte{3});
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(until([&] { return b.transport->totals().connections_lost >= 12; }));
  EXPECT_TRUE(b.events.frames.empty());
  relay->tamper = nullptr;
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1 && a.events.sent.size() == 1; }));
  EXPECT_TRUE(a.events.sent[0].status.ok());
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
}

// Each outage is judged by itself, also where nothing was to be sent in between.
TEST_F(TcpTest, BreaksOfAnIdleLinkDoNotAddUp) {
  open_pair_with_relay({.lost_ms = 1000});
  exchange();
  const auto lost = [&] { return a.transport->totals().connections_lost; };
  const auto began = Clock::now();
  while (Clock::now() - began < std::chrono::milliseconds(3000)) {
    const uint64_t before = lost();
    relay->cut();
    ASSERT_TRUE(until([&] { return lost() > before; }));
    const auto next = Clock::now() + std::chrono::milliseconds(70);
    until([&] { return Clock::now() >= next; });
  }
  EXPECT_TRUE(a.events.downs.empty() && b.events.downs.empty());
  exchange();
}

TEST_F(TcpTest, ALinkWithoutAConnectionForTooLongIsLostByName) {
  open_pair_with_relay({.lost_ms = 400});
  exchange();
  relay->tamper = [](Way, uint64_t, std::span<std::byte> bytes) { bytes[0] ^= std::byte{1}; };
  relay->cut();
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1 && b.events.downs.size() == 1; }));
  EXPECT_THAT(a.events.downs[0].why.message(), HasSubstr("machine 2: "));
  EXPECT_THAT(b.events.downs[0].why.message(), HasSubstr("machine 1: "));
  EXPECT_EQ(a.transport->send(a.peer, {to_bytes("x"), {}}, kNoToken).code(),
            StatusCode::kPEER_LOST);
}

TEST_F(TcpTest, HowLongALinkMayBeWithoutAConnectionCanBeChanged) {
  open_pair_with_relay({.lost_ms = 60'000});
  exchange();
  for (Side* side : {&a, &b}) side->transport->lose_after(400);
  relay->tamper = [](Way, uint64_t, std::span<std::byte> bytes) { bytes[0] ^= std::byte{1}; };
  relay->cut();
  EXPECT_TRUE(until([&] { return a.events.downs.size() == 1 && b.events.downs.size() == 1; }));
}

TEST_F(TcpTest, BuffersStayTheSendersUntilThePeerHasTakenThemIn) {
  open_pair();
  exchange();
  const std::vector<std::byte> payload(1000, std::byte{3});
  ASSERT_TRUE(a.transport->send(a.peer, {to_bytes("x"), payload}, 1).ok());
  for (int i = 0; i < 100; ++i) a.transport->progress();
  EXPECT_TRUE(a.events.sent.empty()) << "b has not even looked";
  EXPECT_TRUE(until([&] { return a.events.sent.size() == 1; }));
}

TEST_F(TcpTest, LinksLeaveNoDescriptorBehind) {
  open(a);
  open(b);
  join(a, b);
  exchange();
  const size_t before = descriptor_count();
  for (int i = 0; i < 50; ++i) {
    Side &first = i % 2 ? a : b, &second = i % 2 ? b : a;
    const size_t downs = second.events.downs.size() + 1;
    first.transport->close(first.peer);
    ASSERT_TRUE(until([&] { return second.events.downs.size() == downs; }));
    second.transport->close(second.peer);
    join(a, b);
    exchange();
  }
  EXPECT_TRUE(until([&] { return descriptor_count() <= before; })) << descriptor_count();
}

// Options

TEST_F(TcpTest, RefusesOptionsOutOfRangeNamingThem) {
  const auto refusal = [](const TcpOptions& options) {
    Recorder events;
    auto made = make_tcp_transport(options, events);
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_THAT(refusal({.hosts = {}}), HasSubstr("hosts"));
  EXPECT_THAT(refusal({.hosts = {"elsewhere"}}), HasSubstr("\"elsewhere\""));
  EXPECT_THAT(refusal({.hosts = {"192.0.2.77"}}), HasSubstr("192.0.2.77"));
  EXPECT_THAT(refusal({.frame_bytes = 100}), HasSubstr("frame_bytes: 100"));
  EXPECT_THAT(refusal({.port_first = 10, .port_last = 9}), HasSubstr("10-9"));
  EXPECT_THAT(refusal({.congestion = "nosuch"}), HasSubstr("nosuch"));
  EXPECT_THAT(find_tcp_seal("wax").status().message(), HasSubstr("\"wax\""));
}

TEST_F(TcpTest, SidesWithDifferentSealsRefuseEachOther) {
  open(a, {.seal = TcpSeal::kLink});
  open(b, {.seal = TcpSeal::kEncrypt});
  const auto refused = a.transport->connect(
      {.remote = *b.transport->local_endpoint(), .inbound_tag = 1, .name = "machine 2"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("tcp/1;seal=encrypt"));
}

}  // namespace
}  // namespace cgx::transport
