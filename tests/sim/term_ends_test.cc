// A step has failed, and a word that the next term waits for does not come, or comes late: whoever
// keeps it is named, and nobody who waits for that machine, too.
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr int64_t kLost = 4;  // seconds: peer_lost_ms

bool is_control(const transport::Frame& frame) {
  return header_of(frame).type == wire::FrameType::kControl;
}

struct EndOfATerm : ::testing::Test {
  World world{{1, 1, 1}};

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0)); }
  void fail_step_1() {
    ASSERT_NO_FATAL_FAILURE(world.abandon(0, 1));
    for (const uint32_t r : {1u, 2u}) submit_all(world.cluster, world.tensors, r, 1);
  }
  StatusCode redo_status(uint32_t rank) {
    const auto& replies = world.cluster.rank(rank).replies;
    const auto found = replies.find(Cluster::kRedo);
    return found == replies.end() ? StatusCode::kBUSY : found->second.code;
  }
};

// Its heartbeats go on. Of a coordinator that is silent the others know only that it waits for
// them.
TEST(SilentMachine, IsNamedWhenATermCannotEnd) {
  for (const uint32_t silent : {1u, 2u}) {
    SCOPED_TRACE("machine " + std::to_string(silent));
    World world({1, 1, 1});
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    world.cluster.let_through([silent](uint32_t, const transport::Frame& frame) {
      const bool of_it = header_of(frame).source == silent;
      return !of_it || !is_control(frame) || carries<scheduler::Failure>(frame);
    });
    ASSERT_NO_FATAL_FAILURE(world.abandon(0, 1));
    world.cluster.run_for(kSecond / 10);
    for (const uint32_t r : {0u, 1u, 2u}) world.cluster.request_redo(r);
    world.cluster.run_for(kLost * kSecond / 2);
    for (const uint32_t r : {0u, 1u, 2u}) {
      EXPECT_EQ(world.cluster.rank(r).replies.count(Cluster::kRedo), 0u);
    }
    world.cluster.run_for(kLost * kSecond);
    for (const uint32_t r : {0u, 1u, 2u}) {
      const wire::Reply& reply = world.cluster.rank(r).replies[Cluster::kRedo];
      EXPECT_EQ(reply.code, StatusCode::kPEER_LOST) << reply.message;
      const std::string named = "no word from machine " + std::to_string(silent);
      EXPECT_NE(reply.message.find(named), std::string::npos) << reply.message;
      EXPECT_EQ(reply.message.find("; machine"), std::string::npos) << reply.message;
    }
  }
}

// Machine 2 cannot report before it has heard machine 1, whose last frames take their time. The
// coordinator hears from machine 2 for whom it waits.
TEST_F(EndOfATerm, ThatOneSlowLinkHoldsUpIsNoMachinesFault) {
  std::vector<KeptFrame> held;
  world.cluster.let_through([&](uint32_t machine, const transport::Frame& frame) {
    const bool slow = machine == 2 && header_of(frame).source == 1 && is_control(frame);
    if (slow) held.emplace_back(frame);
    return !slow;
  });
  ASSERT_NO_FATAL_FAILURE(fail_step_1());
  world.cluster.run_for(4 * kLost * kSecond);
  ASSERT_FALSE(held.empty());
  world.cluster.let_through({});
  for (KeptFrame& frame : held) frame.deliver_as_it_is(world.cluster, 2);
  world.cluster.run_for(kSecond / 10);
  for (const uint32_t r : {1u, 2u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kSTEP_ABANDONED) << world.step_text(r, 1);
  }
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
}

// Not for ever.
TEST_F(EndOfATerm, IsGivenUpAtLastThoughEachWaitsForAnother) {
  world.cluster.let_through([](uint32_t machine, const transport::Frame& frame) {
    return machine != 2 || header_of(frame).source != 1 || !is_control(frame);
  });
  ASSERT_NO_FATAL_FAILURE(fail_step_1());
  world.cluster.run_for(kSecond);
  for (const uint32_t r : {0u, 1u, 2u}) world.cluster.request_redo(r);
  world.cluster.run_for(6 * kLost * kSecond);
  EXPECT_EQ(redo_status(0), StatusCode::kBUSY);
  world.cluster.run_for(3 * kLost * kSecond);
  for (const uint32_t r : {0u, 1u, 2u}) EXPECT_EQ(redo_status(r), StatusCode::kPEER_LOST);
}

}  // namespace
}  // namespace cgx::sim
