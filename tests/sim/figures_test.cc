// The figures an engine shows of itself move when what they are about happens.
#include <numeric>

#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using scheduler::Counter;
using scheduler::Snapshot;

Snapshot shown_by(Cluster& cluster, uint32_t machine) {
  return cluster.engine(machine).snapshot(static_cast<uint64_t>(cluster.now_ns()));
}

std::vector<uint64_t> late_ns(Cluster& cluster, uint32_t machine) {
  const Snapshot shown = shown_by(cluster, machine);
  std::vector<uint64_t> late;
  for (const auto& rank : shown.communicators.at(0).rank_list) {
    late.push_back(rank.late_ns);
  }
  return late;
}

uint64_t bytes_of(const std::vector<Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), uint64_t{0},
                         [](uint64_t sum, const Tensor& tensor) {
                           return sum + tensor.elements * dtype_bytes(tensor.dtype);
                         });
}

TEST(Figures, ShowWhoIsLateAndSinceWhen) {
  World world({2, 1});
  run_step(world.cluster, world.tensors, 0);
  fill(world.cluster, world.tensors, 1);
  submit_all(world.cluster, world.tensors, 0, 1);
  world.cluster.run_for(kSecond / 10);
  EXPECT_EQ(late_ns(world.cluster, 0), (std::vector<uint64_t>{0, 0, 0})) << "too soon to say";
  world.cluster.run_for(3 * kSecond);
  const std::vector<uint64_t> late = late_ns(world.cluster, 0);
  EXPECT_EQ(late[0], 0u);
  EXPECT_NEAR(static_cast<double>(late[1]), 3.1e9, 0.6e9) << "beside the rank that waits";
  EXPECT_NEAR(static_cast<double>(late[2]), 3.1e9, 0.6e9) << "on the other machine";
  submit_all(world.cluster, world.tensors, 2, 1);
  world.cluster.run_for(kSecond);
  EXPECT_GT(late_ns(world.cluster, 0)[1], late[1]);
  EXPECT_EQ(late_ns(world.cluster, 0)[2], 0u);
  submit_all(world.cluster, world.tensors, 1, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }));
  EXPECT_EQ(late_ns(world.cluster, 0), (std::vector<uint64_t>{0, 0, 0}));
}

TEST(Figures, ShowWhoIsLateInACall) {
  World world({1, 1});
  ASSERT_TRUE(world.cluster.call(0, 0, DType::kF32, ReduceOp::kSum, 8, 0).ok());
  world.cluster.run_for(3 * kSecond);
  EXPECT_EQ(late_ns(world.cluster, 0)[0], 0u);
  EXPECT_NEAR(static_cast<double>(late_ns(world.cluster, 0)[1]), 3e9, 0.6e9);
}

TEST(Figures, CountGradientBytesOncePerLocalRank) {
  World world({2, 1});
  run_step(world.cluster, world.tensors, 0);
  const uint64_t step_bytes = bytes_of(world.tensors);
  for (uint32_t machine = 0; machine < 2; ++machine) {
    const Snapshot shown = shown_by(world.cluster, machine);
    const uint64_t expected = step_bytes * world.shape[machine];
    EXPECT_EQ(shown.counters[static_cast<size_t>(Counter::kgradient_bytes)], expected);
    EXPECT_EQ(shown.communicators[0].gradient_bytes, expected);
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(world.cluster.call(rank, 0, DType::kF64, ReduceOp::kSum, 10, 0).ok());
  }
  world.cluster.run_for(kSecond);
  const Snapshot shown = shown_by(world.cluster, 0);
  EXPECT_EQ(shown.counters[static_cast<size_t>(Counter::kgradient_bytes)], 2 * (step_bytes + 80));
}

TEST(Figures, CountWhatASessionWasTold) {
  World world({1, 1});
  run_step(world.cluster, world.tensors, 0);
  const Snapshot shown = shown_by(world.cluster, 0);
  ASSERT_EQ(shown.sessions.size(), 1u);
  EXPECT_EQ(shown.sessions[0].submits, world.tensors.size() + 1);      // and the end of the step
  EXPECT_EQ(shown.sessions[0].completions, world.tensors.size() + 1);  // likewise
}

// However long a daemon keeps a heartbeat before its own goes out.
TEST(Figures, ShowTheRoundTripOfHeartbeats) {
  ClusterOptions options;
  options.link_latency_ns = [](uint32_t from, uint32_t to) {
    return from + to == 1 ? (from == 0 ? 300'000 : 700'000) : 20'000;
  };
  World world({1, 1, 1}, options);
  world.cluster.run_for(2 * kSecond);
  for (uint32_t machine = 0; machine < 2; ++machine) {
    const Snapshot shown = shown_by(world.cluster, machine);
    ASSERT_EQ(shown.peers.size(), 2u);
    EXPECT_EQ(shown.peers[0].rtt_ns, 1'000'000u) << "between machines 0 and 1";
    EXPECT_EQ(shown.peers[1].rtt_ns, 40'000u) << "to machine 2";
  }
}

// A peer that echoes what was never sent, or says that it kept it for ever, is not believed.
TEST(Figures, IgnoreAnEchoThatCannotBe) {
  World world({1, 1});
  std::vector<KeptFrame> beats;
  world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 0 && header_of(frame).type == wire::FrameType::kHeartbeat) {
      beats.emplace_back(frame);
    }
  });
  world.cluster.run_for(2 * kSecond);
  ASSERT_FALSE(beats.empty());
  const uint64_t believed_ns = shown_by(world.cluster, 0).peers[0].rtt_ns;
  ASSERT_GT(believed_ns, 0u);
  KeptFrame beat = beats.back();
  constexpr size_t kEcho = 24, kHeld = 32;  // behind step, call and the peer's clock
  for (const size_t offset : {kEcho, kHeld}) {
    KeptFrame changed = beat;
    std::memset(changed.payload.data() + offset, 0xff, sizeof(uint64_t));
    changed.deliver(world.cluster, 0);
    EXPECT_EQ(shown_by(world.cluster, 0).peers[0].rtt_ns, believed_ns);
  }
}

// A rank that waits for a small step waits for every round of its daemon.
TEST(Figures, CountTheFirstPartSentInTheRoundInWhichItsGroupStarts) {
  Cluster cluster({.policy = raw_policy()});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);
  cluster.commit(tensors);
  const auto sent = [&] {
    const auto now_ns = static_cast<uint64_t>(cluster.now_ns());
    return cluster.engine(0)
        .snapshot(now_ns)
        .counters[static_cast<size_t>(Counter::kencoded_bytes_sent)];
  };
  const uint64_t before = sent();
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    ASSERT_TRUE(cluster.submit(0, 0, t, tensors[t]).ok());
  }
  EXPECT_EQ(sent(), before) << "nothing is done while it is said";
  cluster.engine(0).do_work(static_cast<uint64_t>(cluster.now_ns()));
  EXPECT_GT(sent(), before);
}

uint64_t counted(Cluster& cluster, uint32_t machine, Counter counter) {
  return shown_by(cluster, machine).counters[static_cast<size_t>(counter)];
}

// Two steps of two machines; a data frame that machine 1 read in the first.
struct OneFrame : ::testing::Test {
  World world{{1, 1}};
  std::vector<KeptFrame> heard;

  void SetUp() override {
    world.cluster.tap([this](uint32_t machine, const transport::Frame& frame) {
      if (machine == 1 && is_data(frame) && !frame.payload.empty()) heard.emplace_back(frame);
    });
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    world.cluster.tap({});
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 1));
    ASSERT_FALSE(heard.empty());
    for (const Counter each :
         {Counter::kframes_stale, Counter::kframes_corrupt, Counter::kframes_unexpected}) {
      ASSERT_EQ(counted(world.cluster, 1, each), 0u);
    }
  }
  uint64_t counted_once(Counter counter) { return counted(world.cluster, 1, counter); }
};

TEST_F(OneFrame, OfAStepThatIsOverIsCountedAsStale) {
  heard[0].deliver(world.cluster, 1);
  EXPECT_EQ(counted_once(Counter::kframes_stale), 1u);
}

TEST_F(OneFrame, OfAnUnknownCommunicatorIsCountedAsUnexpected) {
  heard[0].header.communicator ^= 1;
  heard[0].deliver(world.cluster, 1);
  EXPECT_EQ(counted_once(Counter::kframes_unexpected), 1u);
}

TEST_F(OneFrame, ThatWasChangedOnTheWayIsCountedAsCorruptAndEndsItsLink) {
  heard[0].payload[0] ^= std::byte{1};
  submit_step(world.cluster, world.tensors, 2);
  heard[0].deliver_as_it_is(world.cluster, 1);
  EXPECT_EQ(counted_once(Counter::kframes_corrupt), 1u);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.step_status(1, 2), StatusCode::kPEER_LOST) << world.step_text(1, 2);
}

}  // namespace
}  // namespace cgx::sim
