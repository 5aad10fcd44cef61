// What only the simulated network promises: virtual time, ports, determinism. The common promises
// of transports are in tests/conformance/transport_*.
#include "transport/loopback.h"

#include <gtest/gtest.h>

#include "tests/transport/recorder.h"

namespace cgx::transport {
namespace {

constexpr int64_t kMicrosecond = 1000;

class LoopbackTest : public ::testing::Test {
 protected:
  explicit LoopbackTest(LoopbackNetwork::Options options = {}) : network(std::move(options)) {
    for (int i = 0; i < 3; ++i) machines.push_back(network.make_endpoint(events[i]));
  }

  // The id by which `from` knows `to`; call it for both directions.
  PeerId join(int from, int to) {
    ConnectOptions options{.remote = *machines[to]->local_endpoint(),
                           .inbound_tag = tag(to, from),
                           .outbound_tag = tag(from, to),
                           .name = "machine " + std::to_string(to)};
    Result<PeerId> id = machines[from]->connect(options);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return *id;
  }

  static uint64_t tag(int from, int to) { return 100 + 10 * from + to; }

  void run_until(int64_t until_ns) {
    while (network.next_event_ns() <= until_ns) {
      network.advance_to(network.next_event_ns());
      progress();
    }
    network.advance_to(until_ns);
    progress();
  }

  void progress() {
    for (auto& machine : machines) {
      if (machine) machine->progress();
    }
  }

  Recorder events[3];
  LoopbackNetwork network;
  std::vector<std::unique_ptr<Transport>> machines;
};

class SlowLoopbackTest : public LoopbackTest {
 protected:
  // 100 us one way, 1 GB/s ports.
  SlowLoopbackTest()
      : LoopbackTest({.latency_ns = [](const LoopbackNetwork::Hop&) { return 100 * kMicrosecond; },
                      .port_bytes_per_second = 1'000'000'000}) {}
};

TEST_F(SlowLoopbackTest, DeliversAfterTransferTimeAndLatency) {
  const PeerId b = join(0, 1);
  join(1, 0);
  const std::vector<std::byte> payload(10'000);
  ASSERT_TRUE(machines[0]->send(b, {{}, payload}, 7).ok());

  run_until(10 * kMicrosecond - 1);
  EXPECT_TRUE(events[0].sent.empty());
  run_until(10 * kMicrosecond);
  ASSERT_EQ(events[0].sent.size(), 1u);
  EXPECT_EQ(events[0].sent[0].token, 7u);
  run_until(110 * kMicrosecond - 1);
  EXPECT_TRUE(events[1].frames.empty());
  run_until(110 * kMicrosecond);
  ASSERT_EQ(events[1].frames.size(), 1u);
  EXPECT_EQ(events[1].frames[0].payload.size(), 10'000u);
}

TEST_F(SlowLoopbackTest, TwoSendersShareTheReceivingPort) {
  const PeerId a = join(0, 2), b = join(1, 2);
  join(2, 0);
  join(2, 1);
  const std::vector<std::byte> payload(10'000);
  ASSERT_TRUE(machines[0]->send(a, {{}, payload}, 1).ok());
  ASSERT_TRUE(machines[1]->send(b, {{}, payload}, 1).ok());
  run_until(110 * kMicrosecond);
  EXPECT_EQ(events[2].frames.size(), 1u);
  run_until(120 * kMicrosecond);
  EXPECT_EQ(events[2].frames.size(), 2u);
}

TEST(LoopbackPortsTest, UnlimitedOnesLetAQuickSenderPassASlowOne) {
  Recorder events[3];
  LoopbackNetwork network({.latency_ns = [](const LoopbackNetwork::Hop& hop) {
    return hop.from == 0 ? 500 * kMicrosecond : 10 * kMicrosecond;
  }});
  std::unique_ptr<Transport> ends[3];
  for (int i = 0; i < 3; ++i) ends[i] = network.make_endpoint(events[i]);
  for (int from = 0; from < 2; ++from) {
    const uint64_t tag = 1 + from;
    auto peer = ends[from]->connect(
        {.remote = *ends[2]->local_endpoint(), .inbound_tag = tag, .outbound_tag = tag});
    ASSERT_TRUE(peer.ok());
    ASSERT_TRUE(
        ends[2]
            ->connect(
                {.remote = *ends[from]->local_endpoint(), .inbound_tag = tag, .outbound_tag = tag})
            .ok());
    ASSERT_TRUE(ends[from]->send(*peer, {to_bytes("x"), {}}, kNoToken).ok());
  }
  network.advance_to(0);
  network.advance_to(10 * kMicrosecond);
  ends[2]->progress();
  EXPECT_EQ(events[2].frames.size(), 1u);
}

TEST_F(SlowLoopbackTest, ReadsThePayloadWhenTheFrameLeaves) {
  const PeerId b = join(0, 1);
  join(1, 0);
  std::vector<std::byte> payload = to_bytes("before");
  ASSERT_TRUE(machines[0]->send(b, {{}, payload}, 1).ok());
  std::memcpy(payload.data(), "after!", payload.size());  // a caller's bug, made visible
  run_until(kMicrosecond * 200);
  ASSERT_EQ(events[1].frames.size(), 1u);
  EXPECT_EQ(events[1].frames[0].payload, "after!");
}

TEST_F(SlowLoopbackTest, DeadProcessIsHeardAfterTheFramesItSent) {
  const PeerId b = join(0, 1);
  const PeerId a = join(1, 0);
  const std::vector<std::byte> payload(1000), large(1 << 20);
  ASSERT_TRUE(machines[0]->send(b, {{}, payload}, 1).ok());
  ASSERT_TRUE(machines[1]->send(a, {{}, payload}, 1).ok());
  run_until(kMicrosecond);  // both have left
  ASSERT_TRUE(machines[1]->send(a, {{}, large}, 2).ok());
  machines[0].reset();
  run_until(1000 * kMicrosecond);

  EXPECT_EQ(events[1].frames.size(), 1u);
  ASSERT_EQ(events[1].downs.size(), 1u);
  EXPECT_EQ(events[1].downs[0].peer, a);
  EXPECT_EQ(events[1].downs[0].why.code(), StatusCode::kPEER_LOST);
  EXPECT_EQ(events[1].downs[0].why.message(), "machine 0: its process ended");
  ASSERT_EQ(events[1].sent.size(), 2u);
  EXPECT_EQ(events[1].sent_before_down, 2u);
  EXPECT_EQ(events[1].sent[1].status.code(), StatusCode::kPEER_LOST);
}

class SizeOnlyTest : public LoopbackTest {
 protected:
  SizeOnlyTest()
      : LoopbackTest({.port_bytes_per_second = 1'000'000'000,
                      .size_only = [](const Frame& frame) { return frame.header.size() == 1; }}) {}
};

// Addresses with nothing behind them: whoever reads there crashes.
TEST_F(SizeOnlyTest, CarriesThePayloadsSizeAndReadsNothingOfIt) {
  struct Sizes final : public Events {
    std::vector<size_t> came;
    void on_frame(PeerId, const Frame& frame) override { came.push_back(frame.payload.size()); }
    void on_sent(PeerId, SendToken, const Status&) override {}
    void on_peer_down(PeerId, const Status&) override {}
  } sizes;
  const auto receiver = network.make_endpoint(sizes);
  const auto id = machines[0]->connect(
      {.remote = *receiver->local_endpoint(), .inbound_tag = 1, .outbound_tag = 2, .name = "it"});
  ASSERT_TRUE(receiver
                  ->connect({.remote = *machines[0]->local_endpoint(),
                             .inbound_tag = 2,
                             .outbound_tag = 1,
                             .name = "us"})
                  .ok());
  const auto* const nowhere = reinterpret_cast<const std::byte*>(uintptr_t{64});
  const std::vector<std::byte> header(1), other(2), payload(10);
  ASSERT_TRUE(machines[0]->send(*id, {header, {nowhere, 100'000}}, 7).ok());
  ASSERT_TRUE(machines[0]->send(*id, {other, payload}, 8).ok());
  network.advance_to(99'000);
  receiver->progress();
  EXPECT_TRUE(sizes.came.empty()) << "it takes its time";
  network.advance_to(1'000'000);
  receiver->progress();
  EXPECT_EQ(sizes.came, (std::vector<size_t>{100'000, 10}));
}

TEST_F(LoopbackTest, NothingToDoMeansNoNextEvent) {
  EXPECT_EQ(network.next_event_ns(), LoopbackNetwork::kNever);
  const PeerId b = join(0, 1);
  join(1, 0);
  ASSERT_TRUE(machines[0]->send(b, {to_bytes("x"), {}}, kNoToken).ok());
  EXPECT_EQ(network.next_event_ns(), 0);
  progress();
  EXPECT_EQ(network.next_event_ns(), LoopbackNetwork::kNever);
  EXPECT_EQ(events[1].frames.size(), 1u);
}

TEST(LoopbackDeathTest, RefusesToGoBackInTime) {
  LoopbackNetwork network({});
  network.advance_to(5);
  EXPECT_DEATH(network.advance_to(4), "now_ns >= now_ns_");
}

}  // namespace
}  // namespace cgx::transport
