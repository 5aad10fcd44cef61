// Injected faults: each does what it says, a seed replays, and on_sent stays exact.
#include "transport/faults.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/transport/recorder.h"
#include "transport/loopback.h"

namespace cgx::transport {
namespace {

constexpr int64_t kMicrosecond = 1000;

// Two machines on a loopback network of 10 us, wrapped.
class Machines {
 public:
  explicit Machines(FaultPlan plan)
      : network({.latency_ns = [](const LoopbackNetwork::Hop&) { return 10 * kMicrosecond; }}),
        faults(std::move(plan)) {
    for (int i = 0; i < 2; ++i) {
      ends[i] = faults.wrap(events[i], [&](Events& inner) { return network.make_endpoint(inner); });
    }
    for (int i = 0; i < 2; ++i) join(i);
  }

  void join(int from) {
    auto peer = ends[from]->connect({.remote = *ends[1 - from]->local_endpoint(),
                                     .inbound_tag = next_tag + 1 - from,
                                     .outbound_tag = next_tag + from,
                                     .name = "machine " + std::to_string(1 - from)});
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    peers[from] = *peer;
  }
  void rejoin() {
    next_tag += 2;
    for (int i = 0; i < 2; ++i) {
      ends[i]->close(peers[i]);
      join(i);
    }
  }

  void send(int from, const std::string& text) {
    payloads.push_back(to_bytes(text));
    const Status status = ends[from]->send(peers[from], {to_bytes("h"), payloads.back()}, ++token);
    if (!status.ok()) --token;
    refused += !status.ok();
  }
  void advance(int64_t to_ns) {
    while (next_event_ns() <= to_ns) step(next_event_ns());
    step(to_ns);
  }
  void run() {
    while (next_event_ns() != Faults::kNever) step(next_event_ns());
  }
  int64_t next_event_ns() const {
    return std::min(network.next_event_ns(), faults.next_event_ns());
  }
  void step(int64_t to_ns) {
    network.advance_to(std::max(to_ns, network.now_ns()));
    faults.advance_to(network.now_ns());
    for (int i = 0; i < 2; ++i) {
      for (auto& end : ends) end->progress();
    }
  }
  std::string received(int side) const {
    std::string text;
    for (const auto& frame : events[side].frames) text += frame.payload;
    return text;
  }

  Recorder events[2];
  LoopbackNetwork network;
  Faults faults;
  std::unique_ptr<Transport> ends[2];
  PeerId peers[2];
  uint64_t next_tag = 1;
  SendToken token = 0;
  int refused = 0;
  std::vector<std::vector<std::byte>> payloads;
};

void send_all(Machines& machines, const std::string& letters) {
  for (const char letter : letters) machines.send(0, std::string(1, letter));
}

TEST(FaultsTest, DropsTheFrameAndReportsItSent) {
  Machines m({.script = {{.fault = Fault::kDrop, .from = 0, .to = 1, .frame = 1}}});
  send_all(m, "abc");
  m.run();
  EXPECT_EQ(m.received(1), "ac");
  ASSERT_EQ(m.events[0].sent.size(), 3u);
  for (const auto& sent : m.events[0].sent) EXPECT_TRUE(sent.status.ok());
  EXPECT_EQ(m.faults.count(Fault::kDrop), 1u);
}

TEST(FaultsTest, DuplicatesTheFrame) {
  Machines m({.script = {{.fault = Fault::kDuplicate, .from = 0, .to = 1, .frame = 1}}});
  send_all(m, "abc");
  m.run();
  EXPECT_EQ(m.received(1), "abbc");
  EXPECT_EQ(m.events[0].sent.size(), 3u);
}

TEST(FaultsTest, ChangesOneByteAndNotTheCallers) {
  Machines m({.seed = 3, .script = {{.fault = Fault::kCorrupt, .from = 0, .to = 1, .frame = 0}}});
  const std::string text(1000, 'x');
  m.send(0, text);
  m.run();
  ASSERT_EQ(m.events[1].frames.size(), 1u);
  const std::string all = m.events[1].frames[0].header + m.events[1].frames[0].payload;
  const std::string sent = "h" + text;
  ASSERT_EQ(all.size(), sent.size());
  size_t changed = 0;
  for (size_t i = 0; i < all.size(); ++i) changed += all[i] != sent[i];
  EXPECT_EQ(changed, 1u);
  EXPECT_EQ(to_text(m.payloads[0]), text);
}

TEST(FaultsTest, ReordersBehindTheNextFrame) {
  Machines m({.script = {{.fault = Fault::kReorder,
                          .from = 0,
                          .to = 1,
                          .frame = 1,
                          .delay_ns = 1000 * kMicrosecond}}});
  send_all(m, "abcd");
  m.advance(50 * kMicrosecond);
  EXPECT_EQ(m.received(1), "acbd");
}

TEST(FaultsTest, AReorderedLastFrameStillArrives) {
  Machines m({.script = {{.fault = Fault::kReorder,
                          .from = 0,
                          .to = 1,
                          .frame = 1,
                          .delay_ns = 1000 * kMicrosecond}}});
  send_all(m, "ab");
  m.advance(50 * kMicrosecond);
  EXPECT_EQ(m.received(1), "a");
  m.advance(1010 * kMicrosecond);
  EXPECT_EQ(m.received(1), "ab");
}

TEST(FaultsTest, DelaysTheFrameAndAllBehindIt) {
  Machines m({.script = {{.fault = Fault::kDelay,
                          .from = 0,
                          .to = 1,
                          .frame = 1,
                          .delay_ns = 500 * kMicrosecond}}});
  send_all(m, "abc");
  m.advance(509 * kMicrosecond);
  EXPECT_EQ(m.received(1), "a");
  m.advance(510 * kMicrosecond);
  EXPECT_EQ(m.received(1), "abc");
}

TEST(FaultsTest, ACutIsSilentAndKeepsFramesUntilHealed) {
  Machines m({.script = {{.fault = Fault::kCut, .from = 0, .to = 1, .frame = 1},
                         {.fault = Fault::kHeal, .from = 0, .to = 1, .at_ns = 900'000}}});
  send_all(m, "abc");
  m.send(1, "z");
  m.advance(800'000);
  EXPECT_EQ(m.received(1), "a");
  EXPECT_EQ(m.received(0), "z");  // the other direction lives
  EXPECT_EQ(m.events[0].sent.size(), 1u);
  EXPECT_TRUE(m.events[0].downs.empty() && m.events[1].downs.empty());
  m.run();
  EXPECT_EQ(m.received(1), "abc");
  EXPECT_EQ(m.events[0].sent.size(), 3u);
}

TEST(FaultsTest, ClosingACutLinkIsNotHeardUntilHealed) {
  Machines m({.script = {{.fault = Fault::kCut, .from = 0, .to = 1, .at_ns = 10},
                         {.fault = Fault::kHeal, .from = 0, .to = 1, .at_ns = 900'000}}});
  m.advance(20);
  send_all(m, "a");
  m.ends[0]->close(m.peers[0]);
  m.advance(800'000);
  ASSERT_EQ(m.events[0].sent.size(), 1u);
  EXPECT_EQ(m.events[0].sent[0].status.code(), StatusCode::kCANCELLED);
  EXPECT_TRUE(m.events[1].downs.empty());
  m.advance(1'000'000);
  EXPECT_EQ(m.events[1].downs.size(), 1u);
  EXPECT_EQ(m.received(1), "");
}

TEST(FaultsTest, ADisconnectIsHeardOnceOnBothSidesAfterPendingSends) {
  Machines m(
      {.script = {
           {.fault = Fault::kDelay, .from = 0, .to = 1, .frame = 0, .delay_ns = 99'000},
           {.fault = Fault::kDisconnect, .from = 0, .to = 1, .both_ways = true, .at_ns = 50'000}}});
  send_all(m, "ab");
  m.run();
  for (int side = 0; side < 2; ++side) {
    ASSERT_EQ(m.events[side].downs.size(), 1u) << side;
    EXPECT_EQ(m.events[side].downs[0].peer, m.peers[side]);
    EXPECT_EQ(m.events[side].downs[0].why.code(), StatusCode::kPEER_LOST);
  }
  EXPECT_EQ(m.events[0].sent_before_down, 2u);
  EXPECT_EQ(m.received(1), "");
  m.send(0, "c");
  EXPECT_EQ(m.refused, 1);
}

TEST(FaultsTest, AOneWayDisconnectLeavesTheOtherSideBelieving) {
  Machines m({.script = {{.fault = Fault::kDisconnect, .from = 0, .to = 1, .at_ns = 50'000},
                         {.fault = Fault::kHeal, .from = 0, .to = 1, .at_ns = 900'000}}});
  m.advance(60'000);
  ASSERT_EQ(m.events[0].downs.size(), 1u);
  m.ends[0]->close(m.peers[0]);
  m.send(1, "lost");
  m.advance(800'000);
  EXPECT_TRUE(m.events[1].downs.empty());
  EXPECT_EQ(m.events[1].sent.size(), 1u);
  EXPECT_EQ(m.received(0), "");
  m.run();
  EXPECT_EQ(m.events[1].downs.size(), 1u);
}

TEST(FaultsTest, ConnectingAnewFailsUntilHealed) {
  Machines m(
      {.script = {
           {.fault = Fault::kDisconnect, .from = 0, .to = 1, .both_ways = true, .at_ns = 50'000},
           {.fault = Fault::kHeal, .from = 0, .to = 1, .both_ways = true, .at_ns = 900'000}}});
  m.advance(100'000);
  m.rejoin();
  m.advance(200'000);
  EXPECT_EQ(m.events[0].downs.size(), 2u);
  EXPECT_EQ(m.events[1].downs.size(), 2u);
  m.advance(950'000);
  m.rejoin();
  m.send(0, "again");
  m.run();
  EXPECT_EQ(m.received(1), "again");
  EXPECT_EQ(m.events[0].downs.size(), 2u);
}

FaultPlan storm(uint64_t seed) {
  return {.seed = seed,
          .drop = 0.05,
          .duplicate = 0.05,
          .corrupt = 0.05,
          .reorder = 0.05,
          .delay = 0.05,
          .cut = 0.01,
          .disconnect = 0.01,
          .delay_ns_max = 200 * kMicrosecond,
          .heal_after_ns = 300 * kMicrosecond,
          .quiet_from_ns = 40'000 * kMicrosecond};
}

// Everything that happened, as text.
std::string history(uint64_t seed, int frames, Machines** kept = nullptr) {
  static std::unique_ptr<Machines> last;
  last = std::make_unique<Machines>(storm(seed));
  Machines& m = *last;
  for (int i = 0; i < frames; ++i) {
    m.send(i % 2, "frame " + std::to_string(i) + ";");
    m.advance(m.network.now_ns() + 20 * kMicrosecond);
    if (!m.events[0].downs.empty() && m.refused > 0 && i % 16 == 0) {
      m.rejoin();
      m.refused = 0;
    }
  }
  m.advance(40'001 * kMicrosecond);
  m.run();
  std::string text;
  for (const Recorder& side : m.events) {
    for (const auto& frame : side.frames) text += frame.header + frame.payload;
    for (const auto& sent : side.sent) {
      text += std::to_string(sent.token) + sent.status.to_string() + ";";
    }
    text += std::to_string(side.downs.size()) + "|";
  }
  if (kept) *kept = &m;
  return text;
}

TEST(FaultsTest, ASeedReplaysAndAnotherDiffers) {
  EXPECT_EQ(history(7, 500), history(7, 500));
  EXPECT_NE(history(7, 500), history(8, 500));
}

TEST(FaultsTest, EveryTokenIsReportedOnceInAnyStorm) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Machines* m = nullptr;
    (void)history(seed, 300, &m);
    std::map<SendToken, int> reports;
    for (const Recorder& side : m->events) {
      for (const auto& sent : side.sent) ++reports[sent.token];
    }
    ASSERT_EQ(reports.size(), m->token) << "seed " << seed;
    for (const auto& [token, count] : reports) {
      ASSERT_EQ(count, 1) << "seed " << seed << " token " << token;
    }
  }
}

TEST(FaultsTest, RandomFaultsHappenAboutAsOftenAsAsked) {
  Machines m({.seed = 5, .drop = 0.1, .duplicate = 0.1, .corrupt = 0.1});
  for (int i = 0; i < 2000; ++i) m.send(0, "x");
  m.run();
  for (const Fault fault : {Fault::kDrop, Fault::kDuplicate, Fault::kCorrupt}) {
    EXPECT_NEAR(static_cast<double>(m.faults.count(fault)), 200, 60);
  }
}

TEST(FaultsTest, NoRandomFaultAfterTheQuietTime) {
  Machines m({.drop = 1.0, .quiet_from_ns = 1000});
  m.send(0, "lost");
  m.advance(1000);
  m.send(0, "kept");
  m.run();
  EXPECT_EQ(m.received(1), "kept");
}

}  // namespace
}  // namespace cgx::transport
