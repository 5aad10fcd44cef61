#include "tests/conformance/transport_suite.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

namespace cgx::transport {

using Clock = std::chrono::steady_clock;

TransportConformance::TransportConformance() : rig(GetParam().make()) {
  for (Side* side : {&a, &b}) side->transport = rig->make(side->events);
}

TransportConformance::~TransportConformance() {
  a.transport.reset();
  b.transport.reset();
}

ConnectOptions TransportConformance::options(const Side& from, Side& to, uint64_t link) {
  Result<Endpoint> remote = to.transport->local_endpoint();
  EXPECT_TRUE(remote.ok()) << remote.status().to_string();
  const bool from_a = &from == &a;
  return {.remote = *remote,
          .inbound_tag = 16 * link + (from_a ? 2 : 1),
          .outbound_tag = 16 * link + (from_a ? 1 : 2),
          .secret = {std::byte{7}, static_cast<std::byte>(link)},
          .dials = from_a,
          .name = from_a ? "side b" : "side a"};
}

void TransportConformance::join() {
  Result<PeerId> to_b = a.transport->connect(options(a, b));
  Result<PeerId> to_a = b.transport->connect(options(b, a));
  ASSERT_TRUE(to_b.ok()) << to_b.status().to_string();
  ASSERT_TRUE(to_a.ok()) << to_a.status().to_string();
  a.peer = *to_b;
  b.peer = *to_a;
}

Status TransportConformance::send(Side& from, std::string_view header,
                                  std::span<const std::byte> payload, SendToken token) {
  return from.transport->send(from.peer, {to_bytes(header), payload}, token);
}

void TransportConformance::tick() {
  rig->let_time_pass();
  if (a.transport) a.transport->progress();
  if (b.transport) b.transport->progress();
}

bool TransportConformance::until(const std::function<bool()>& done) {
  const auto deadline = Clock::now() + std::chrono::seconds(120);  // the longest takes 6 s
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    tick();
  }
  return true;
}

void TransportConformance::settle() {
  const auto events = [&] {
    return a.events.frames.size() + b.events.frames.size() + a.events.sent.size() +
           b.events.sent.size() + a.events.downs.size() + b.events.downs.size();
  };
  // Silence for a while: the kernel needs time to carry what was sent.
  auto since = Clock::now();
  for (size_t before = events(); Clock::now() - since < std::chrono::milliseconds(30);) {
    tick();
    if (events() != before) since = Clock::now();
    before = events();
  }
}

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return data;
}

namespace {

TEST_P(TransportConformance, CarriesEverySizeWholeAndInOrder) {
  join();
  const Caps caps = a.transport->caps();
  const size_t best = caps.frame_bytes_best, max = caps.frame_bytes_max;
  const std::vector<size_t> sizes = {0,        1,    7,        64,       4095, 8192, 65536,
                                     best - 1, best, best + 1, best * 2, max,  3,    0};
  std::vector<std::vector<std::byte>> payloads;
  for (size_t i = 0; i < sizes.size(); ++i) payloads.push_back(pattern(sizes[i], i));
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(send(a, "frame " + std::to_string(i), payloads[i], i + 1).ok());
  }
  ASSERT_TRUE(until([&] { return b.events.frames.size() == sizes.size(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(b.events.frames[i].from, b.peer);
    EXPECT_EQ(b.events.frames[i].header, "frame " + std::to_string(i));
    EXPECT_TRUE(b.events.frames[i].payload == to_text(payloads[i])) << "frame " << i;
  }
}

TEST_P(TransportConformance, CarriesTheLongestHeader) {
  join();
  const std::string header(a.transport->caps().header_bytes_max, 'h');
  ASSERT_GE(header.size(), 256u);
  const std::vector<std::byte> payload = pattern(a.transport->caps().frame_bytes_best, 1);
  ASSERT_TRUE(send(a, header, payload, 1).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  EXPECT_EQ(b.events.frames[0].header, header);
  EXPECT_TRUE(b.events.frames[0].payload == to_text(payload));
}

TEST_P(TransportConformance, CopiesNothingUpToTheBestSize) {
  join();
  const std::vector<std::byte> payload = pattern(a.transport->caps().frame_bytes_best, 1);
  const std::string header(a.transport->caps().header_bytes_max, 'h');
  ASSERT_TRUE(send(a, header, payload, 1).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  EXPECT_EQ(b.transport->totals().bytes_copied, 0u);
}

TEST_P(TransportConformance, ReportsEachTokenOnceAndNeverInsideSend) {
  join();
  const std::vector<std::byte> payload = pattern(10'000, 1);
  std::map<SendToken, int> reports;
  a.events.when_sent = [&](SendToken token) { ++reports[token]; };
  for (SendToken token = 1; token <= 200; ++token) {
    const size_t before = a.events.sent.size();
    ASSERT_TRUE(send(a, "h",
                     token % 2 ? std::span<const std::byte>(payload) : std::span<const std::byte>(),
                     token)
                    .ok());
    ASSERT_EQ(a.events.sent.size(), before);
    if (token % 10 == 0) tick();
  }
  ASSERT_TRUE(until([&] { return reports.size() == 200; }));
  settle();
  for (const auto& [token, count] : reports) EXPECT_EQ(count, 1) << "token " << token;
  for (const auto& sent : a.events.sent) {
    EXPECT_TRUE(sent.status.ok()) << sent.status.to_string();
    EXPECT_EQ(sent.to, a.peer);
  }
}

TEST_P(TransportConformance, ReportsNoSendWithoutToken) {
  join();
  ASSERT_TRUE(send(a, "quiet", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  settle();
  EXPECT_TRUE(a.events.sent.empty());
}

TEST_P(TransportConformance, HeaderMayChangeRightAfterSend) {
  join();
  std::vector<std::byte> header = to_bytes("original");
  const std::vector<std::byte> payload = pattern(200'000, 1);
  for (SendToken token = 1; token <= 8; ++token) {
    std::memcpy(header.data(), "original", header.size());
    ASSERT_TRUE(a.transport->send(a.peer, {header, payload}, token).ok());
    std::memcpy(header.data(), "changed!", header.size());
  }
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 8; }));
  for (const auto& frame : b.events.frames) EXPECT_EQ(frame.header, "original");
}

TEST_P(TransportConformance, AnswersFromInsideOnFrame) {
  join();
  const std::vector<std::byte> payload = pattern(3000, 1);
  SendToken token = 0;
  b.events.when_frame = [&](PeerId from, const Frame& frame) {
    EXPECT_TRUE(b.transport->send(from, {frame.header, payload}, ++token).ok());
  };
  a.events.when_frame = [&](PeerId from, const Frame& frame) {
    if (a.events.frames.size() < 100) {
      EXPECT_TRUE(a.transport->send(from, {frame.header, {}}, kNoToken).ok());
    }
  };
  ASSERT_TRUE(send(a, "ball", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return a.events.frames.size() == 100; }));
  EXPECT_EQ(b.events.frames.size(), 100u);
}

TEST_P(TransportConformance, RefusesWhatItCannotCarry) {
  join();
  const Caps caps = a.transport->caps();
  const std::vector<std::byte> header(caps.header_bytes_max + 1);
  const std::vector<std::byte> payload(caps.frame_bytes_max + 1);
  const std::vector<std::byte> small(1);
  EXPECT_GE(caps.frame_bytes_max, kFrameBytesMax);
  EXPECT_EQ(a.transport->send(a.peer, {header, {}}, 1).code(), StatusCode::kINVALID_ARGUMENT);
  const Status too_long = a.transport->send(a.peer, {{}, payload}, 1);
  EXPECT_EQ(too_long.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(too_long.message().find(std::to_string(payload.size())), std::string::npos);
  EXPECT_NE(too_long.message().find(std::to_string(caps.frame_bytes_max)), std::string::npos);
  EXPECT_EQ(a.transport->send(a.peer, {{}, small}, kNoToken).code(), StatusCode::kINVALID_ARGUMENT);
  settle();
  EXPECT_TRUE(a.events.sent.empty());
  EXPECT_TRUE(b.events.frames.empty());
}

TEST_P(TransportConformance, RefusesOtherSettingsNamingBoth) {
  ConnectOptions wrong = options(a, b);
  const std::string ours = wrong.remote.settings;
  wrong.remote.settings += ";other=1";
  const Result<PeerId> peer = a.transport->connect(wrong);
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), StatusCode::kMISMATCH);
  EXPECT_NE(peer.status().message().find("side b"), std::string::npos);
  EXPECT_NE(peer.status().message().find(ours), std::string::npos);
  EXPECT_NE(peer.status().message().find(ours + ";other=1"), std::string::npos);
}

TEST_P(TransportConformance, RefusesAMalformedAddress) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'000}}) {
    ConnectOptions wrong = options(a, b);
    wrong.remote.address.assign(bytes, std::byte{0xff});
    const Result<PeerId> peer = a.transport->connect(wrong);
    ASSERT_FALSE(peer.ok()) << bytes;
    EXPECT_EQ(peer.status().code(), StatusCode::kINVALID_ARGUMENT);
  }
}

TEST_P(TransportConformance, RefusesAnInboundTagInUse) {
  join();
  const Result<PeerId> again = a.transport->connect(options(a, b));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), StatusCode::kALREADY_EXISTS);
}

TEST_P(TransportConformance, CountsAndDropsFramesWithAnUnknownTag) {
  join();
  ConnectOptions wrong = options(a, b, 1);
  wrong.outbound_tag = 999;
  const Result<PeerId> stranger = a.transport->connect(wrong);
  ASSERT_TRUE(stranger.ok());
  const std::vector<std::byte> payload = pattern(1000, 1);
  ASSERT_TRUE(a.transport->send(*stranger, {to_bytes("x"), payload}, 1).ok());
  ASSERT_TRUE(send(a, "y", payload, 2).ok());
  ASSERT_TRUE(until(
      [&] { return b.transport->totals().frames_dropped == 1 && b.events.frames.size() == 1; }));
  EXPECT_EQ(b.events.frames[0].header, "y");
  EXPECT_EQ(b.transport->totals().frames_received, 1u);
}

TEST_P(TransportConformance, KeepsTwoLinksOfThePairApart) {
  join();
  const Result<PeerId> second_b = a.transport->connect(options(a, b, 1));
  const Result<PeerId> second_a = b.transport->connect(options(b, a, 1));
  ASSERT_TRUE(second_b.ok() && second_a.ok());
  ASSERT_TRUE(send(a, "first", {}, kNoToken).ok());
  ASSERT_TRUE(a.transport->send(*second_b, {to_bytes("second"), {}}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 2; }));
  for (const auto& frame : b.events.frames) {
    EXPECT_EQ(frame.from, frame.header == "first" ? b.peer : *second_a);
  }
  a.transport->close(*second_b);
  ASSERT_TRUE(until([&] { return b.events.downs.size() == 1; }));
  EXPECT_EQ(b.events.downs[0].peer, *second_a);
  ASSERT_TRUE(send(a, "third", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 3; }));
}

TEST_P(TransportConformance, TotalsOfBothSidesMatch) {
  join();
  const std::vector<std::byte> payload = pattern(5000, 1);
  for (SendToken token = 1; token <= 20; ++token) ASSERT_TRUE(send(a, "head", payload, token).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 20 && a.events.sent.size() == 20; }));
  const Transport::Totals from = a.transport->totals(), to = b.transport->totals();
  EXPECT_EQ(from.frames_sent, 20u);
  EXPECT_EQ(from.bytes_sent, 20u * 5004);
  EXPECT_EQ(to.frames_received, 20u);
  EXPECT_EQ(to.bytes_received, 20u * 5004);
  EXPECT_EQ(to.frames_dropped, 0u);
}

TEST_P(TransportConformance, FloodInBothDirectionsDoesNotDeadlock) {
  join();
  constexpr SendToken kFrames = 150;
  const std::vector<std::byte> payload = pattern(250'000, 1);
  for (SendToken token = 1; token <= kFrames; ++token) {
    ASSERT_TRUE(send(a, "flood", payload, token).ok());
    ASSERT_TRUE(send(b, "flood", payload, token).ok());
  }
  EXPECT_TRUE(until([&] {
    return a.events.frames.size() == kFrames && b.events.frames.size() == kFrames &&
           a.events.sent.size() == kFrames && b.events.sent.size() == kFrames;
  }));
}

TEST_P(TransportConformance, FramesSentBeforeCloseArriveThenThePeerHearsOnce) {
  join();
  const std::vector<std::byte> payload = pattern(5000, 1);
  for (SendToken token = 1; token <= 5; ++token) ASSERT_TRUE(send(a, "last", payload, token).ok());
  ASSERT_TRUE(until([&] { return a.events.sent.size() == 5; }));
  a.transport->close(a.peer);
  ASSERT_TRUE(until([&] { return b.events.downs.size() == 1; }));
  settle();
  EXPECT_EQ(b.events.frames.size(), 5u);
  ASSERT_EQ(b.events.downs.size(), 1u);
  EXPECT_EQ(b.events.downs[0].peer, b.peer);
  EXPECT_EQ(b.events.downs[0].why.code(), StatusCode::kPEER_LOST);
  EXPECT_NE(b.events.downs[0].why.message().find("side a"), std::string::npos);
  EXPECT_TRUE(a.events.downs.empty());
}

constexpr size_t kLongBytes = 4u << 20;  // more than goes out at once

TEST_P(TransportConformance, CloseCancelsPendingSends) {
  join();
  ASSERT_TRUE(send(a, "up", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  const std::vector<std::byte> payload = pattern(kLongBytes, 1);
  constexpr SendToken kFrames = 20;
  std::set<SendToken> reported;
  a.events.when_sent = [&](SendToken token) { reported.insert(token); };
  for (SendToken token = 1; token <= kFrames; ++token) {
    ASSERT_TRUE(send(a, "long", payload, token).ok());
  }
  a.transport->close(a.peer);
  EXPECT_TRUE(a.events.sent.empty());
  ASSERT_TRUE(until([&] { return reported.size() == kFrames; }));
  settle();
  EXPECT_EQ(a.events.sent.size(), kFrames);
  EXPECT_EQ(a.events.sent.back().status.code(), StatusCode::kCANCELLED);
  EXPECT_TRUE(a.events.downs.empty());
  EXPECT_TRUE(until([&] { return b.events.downs.size() == 1; }));
}

// Two jobs between the same daemons, one of which ends in the middle.
TEST_P(TransportConformance, ClosingOneLinkWithSendsPendingLeavesTheOthersAlone) {
  join();
  const Result<PeerId> ending_b = a.transport->connect(options(a, b, 1));
  const Result<PeerId> ending_a = b.transport->connect(options(b, a, 1));
  ASSERT_TRUE(ending_b.ok() && ending_a.ok());
  const std::vector<std::byte> payload = pattern(a.transport->caps().frame_bytes_best, 1);
  const std::vector<std::byte> small = pattern(1000, 2);
  constexpr SendToken kFrames = 40;
  for (SendToken token = 1; token <= kFrames; ++token) {
    ASSERT_TRUE(a.transport->send(*ending_b, {to_bytes("ending"), payload}, token).ok());
    ASSERT_TRUE(send(a, "other", small, kFrames + token).ok());
  }
  a.transport->close(*ending_b);
  for (SendToken token = 1; token <= kFrames; ++token) {
    ASSERT_TRUE(send(a, "other", small, 2 * kFrames + token).ok());
  }
  const auto others = [&] {
    return std::count_if(b.events.frames.begin(), b.events.frames.end(),
                         [&](const auto& frame) { return frame.from == b.peer; });
  };
  ASSERT_TRUE(until([&] {
    return others() == 2 * kFrames && a.events.sent.size() == 3 * kFrames &&
           b.events.downs.size() == 1;
  }));
  EXPECT_EQ(b.events.downs[0].peer, *ending_a);
  b.transport->close(*ending_a);
  ASSERT_TRUE(send(b, "back", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return a.events.frames.size() == 1; }));
  EXPECT_TRUE(a.events.downs.empty());
}

TEST_P(TransportConformance, StaleIdIsRefused) {
  join();
  a.transport->close(a.peer);
  EXPECT_EQ(send(a, "x", {}, kNoToken).code(), StatusCode::kNOT_FOUND);
  a.transport->close(a.peer);  // nothing happens
  const Result<PeerId> again = a.transport->connect(options(a, b));
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(*again == a.peer);
  EXPECT_EQ(send(a, "x", {}, kNoToken).code(), StatusCode::kNOT_FOUND);
}

TEST_P(TransportConformance, NoFrameArrivesAfterClosingInsideOnFrame) {
  join();
  const std::vector<std::byte> payload = pattern(100, 1);
  b.events.when_frame = [&](PeerId from, const Frame&) { b.transport->close(from); };
  for (SendToken token = 1; token <= 20; ++token) {
    ASSERT_TRUE(send(a, std::to_string(token), payload, token).ok());
  }
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1; }));
  settle();
  EXPECT_EQ(b.events.frames.size(), 1u);
  EXPECT_TRUE(b.events.downs.empty());
}

TEST_P(TransportConformance, DeadPeerIsReportedOnceAfterItsPendingSends) {
  join();
  ASSERT_TRUE(send(a, "hello", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  const std::vector<std::byte> payload = pattern(kLongBytes, 1);
  constexpr SendToken kFrames = 20;
  for (SendToken token = 1; token <= kFrames; ++token) {
    ASSERT_TRUE(send(a, "long", payload, token).ok());
  }
  b.transport.reset();
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1; }));
  EXPECT_EQ(a.events.downs[0].peer, a.peer);
  EXPECT_EQ(a.events.downs[0].why.code(), StatusCode::kPEER_LOST);
  EXPECT_NE(a.events.downs[0].why.message().find("side b"), std::string::npos);
  EXPECT_EQ(a.events.sent_before_down, kFrames);
  for (const auto& sent : a.events.sent) {
    EXPECT_TRUE(sent.status.ok() || sent.status.code() == StatusCode::kPEER_LOST);
  }
  EXPECT_EQ(send(a, "late", {}, kNoToken).code(), StatusCode::kPEER_LOST);
  settle();
  EXPECT_EQ(a.events.downs.size(), 1u);
  EXPECT_EQ(a.events.sent.size(), kFrames);
}

TEST_P(TransportConformance, ConnectsAnewAfterThePeerDied) {
  join();
  b.transport.reset();
  a.events.when_down = [&](PeerId peer) { a.transport->close(peer); };
  ASSERT_TRUE(until([&] { return a.events.downs.size() == 1; }));
  b.transport = rig->make(b.events);
  join();
  ASSERT_TRUE(send(a, "again", {}, kNoToken).ok());
  ASSERT_TRUE(send(b, "again", {}, kNoToken).ok());
  EXPECT_TRUE(until([&] { return a.events.frames.size() == 1 && b.events.frames.size() == 1; }));
}

TEST_P(TransportConformance, IdleMeansNoWorkAndArmed) {
  join();
  const std::vector<std::byte> payload = pattern(100'000, 1);
  ASSERT_TRUE(send(a, "x", payload, 1).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1 && a.events.sent.size() == 1; }));
  settle();
  for (Side* side : {&a, &b}) {
    const auto idles = [&] {
      int work = 0;
      for (int i = 0; i < 100; ++i) work += side->transport->progress();
      return work == 0;
    };
    ASSERT_TRUE(until(idles));  // the end of a connection that both began may still be to come
    EXPECT_TRUE(until([&] { return side->transport->arm(); }));
  }
}

TEST_P(TransportConformance, ArmedEndpointWakesUpForAFrame) {
  join();
  ASSERT_TRUE(send(a, "first", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  settle();
  if (b.transport->event_fd() < 0) GTEST_SKIP() << "virtual time: nobody sleeps";
  // An acknowledgement of what was said may still be on its way, and wakes it up once more.
  pollfd ready{.fd = b.transport->event_fd(), .events = POLLIN, .revents = 0};
  ASSERT_TRUE(until([&] { return b.transport->arm() && ::poll(&ready, 1, 0) == 0; }));
  ASSERT_TRUE(send(a, "second", {}, kNoToken).ok());
  a.transport->progress();
  EXPECT_EQ(::poll(&ready, 1, 1000), 1);
  EXPECT_TRUE(until([&] { return b.events.frames.size() == 2; }));
}

TEST_P(TransportConformance, DoesNotArmWithSomethingToReport) {
  join();
  ASSERT_TRUE(send(a, "x", {}, kNoToken).ok());
  ASSERT_TRUE(until([&] { return b.events.frames.size() == 1; }));
  settle();
  ASSERT_TRUE(send(a, "y", {}, 5).ok());
  // Until on_sent has been called, arm() may only succeed if an event will tell.
  while (a.events.sent.empty()) {
    if (a.transport->arm() && a.transport->event_fd() >= 0) {
      pollfd ready{.fd = a.transport->event_fd(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&ready, 1, 1000), 1) << "asleep with a completion unreported";
    }
    tick();
  }
  EXPECT_EQ(a.events.sent[0].token, 5u);
}

}  // namespace
}  // namespace cgx::transport
