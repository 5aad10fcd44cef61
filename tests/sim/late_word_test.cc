// All results of a step are here, and a local rank has not ended it yet: other machines may be a
// step further.
#include <optional>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

void submit_without_end(World& world, uint32_t rank, uint64_t step) {
  for (uint32_t t = 0; t < world.tensors.size(); ++t) {
    ASSERT_TRUE(world.cluster.submit(rank, step, t, world.tensors[t]).ok());
  }
}

// The coordinator is in the last step before a switch, another machine abandons the first after it.
TEST(LateWord, OfTheCoordinatorsRankKeepsTheNextStepsEpoch) {
  World world({2, 1, 1});
  uint64_t step = 0;
  for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
  std::optional<Result<scheduler::PolicyChange>> change;
  scheduler::Policy policy = raw_policy();
  policy.window = 3;
  world.cluster.engine(0).apply_policy({.job = "job", .policy = policy},
                                       [&](const auto& answer) { change = answer; });
  ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, kSecond));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  for (; step + 1 < (*change)->switch_step; ++step) {
    run_step(world.cluster, world.tensors, step);
  }
  fill(world.cluster, world.tensors, step);
  submit_without_end(world, 0, step);
  for (uint32_t r = 1; r < 4; ++r) submit_all(world.cluster, world.tensors, r, step);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.step_status(2, step) == StatusCode::kOK; },
                                      kSecond));
  world.abandon(3, step + 1);
  world.cluster.run_for(kSecond / 10);
  ASSERT_TRUE(world.cluster.end_step(0, step).ok());
  ASSERT_TRUE(world.cluster.run_until([&] { return world.step_status(0, step) == StatusCode::kOK; },
                                      kSecond));
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(step + 1));
  for (uint32_t r = 0; r < 4; ++r) {
    const auto* ended = world.cluster.rank(r).find(CGX_COMPLETE_STEP, step + 1);
    EXPECT_EQ(ended->record.policy_version, (*change)->policy_version) << "rank " << r;
  }
}

TEST(LateWord, ThatNeverComesIsToldToWhoWaitsForIt) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {2, 1}}) {
    World world(shape, {.timeout_ms = 20'000});
    run_step(world.cluster, world.tensors, 0);
    fill(world.cluster, world.tensors, 1);
    submit_without_end(world, 1, 1);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      if (r != 1) submit_all(world.cluster, world.tensors, r, 1);
    }
    ASSERT_TRUE(world.cluster.run_until(
        [&] { return world.step_status(0, 1) != StatusCode::kBUSY; }, 60 * kSecond));
    // Where other machines have completed the step, it cannot be done again.
    const bool alone = shape.size() == 1;
    EXPECT_EQ(world.step_status(0, 1), alone ? StatusCode::kTIMED_OUT : StatusCode::kSTEP_LOST);
    EXPECT_NE(world.step_text(0, 1).find("for rank 1"), std::string::npos) << world.step_text(0, 1);
    if (!alone) continue;
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
  }
}

}  // namespace
}  // namespace cgx::sim
