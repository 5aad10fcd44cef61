// A step has failed, and a word that the next term waits for does not come: whoever keeps it is
// named, and nobody who waits for that machine, too.
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr int64_t kLost = 4;  // seconds: peer_lost_ms

bool is_control(const transport::Frame& frame) {
  return header_of(frame).type == wire::FrameType::kControl;
}

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

}  // namespace
}  // namespace cgx::sim
