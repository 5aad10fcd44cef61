// A term begins under a plan that one machine lacks, because a link has lost the decision about it:
// the plan is made away from the thread that moves gradients, and everybody else goes on meanwhile.
#include <gtest/gtest.h>

#include <optional>

#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

struct Lacking : ::testing::Test {
  static constexpr uint32_t kLacking = 1;  // the machine, and its rank

  int64_t planning_ns = 0;  // of that machine
  World world{{1, 1, 1}, [this] {
                ClusterOptions options;
                options.planning_ns = [this](uint32_t machine) {
                  return machine == kLacking ? planning_ns : 0;
                };
                return options;
              }()};
  uint64_t step = 0;
  uint64_t version = 0;

  // Everybody else has switched when the step fails everywhere.
  void SetUp() override {
    for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
    world.cluster.let_through([this](uint32_t machine, const transport::Frame& frame) {
      if (machine == kLacking && carries<scheduler::Decided>(frame)) return false;
      if (machine != kLacking || header_of(frame).next_epoch == 0) return true;
      KeptFrame changed(frame);
      changed.header.next_epoch = changed.header.switch_step = 0;
      changed.deliver(world.cluster, machine);
      return false;
    });
    std::optional<Result<scheduler::PolicyChange>> change;
    scheduler::Policy policy = raw_policy();
    policy.window = 3;
    world.cluster.engine(0).apply_policy({.job = "job", .policy = policy},
                                         [&change](const auto& answer) { change = answer; });
    ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, kSecond));
    ASSERT_TRUE(change->ok()) << change->status().to_string();
    version = (*change)->policy_version;
    for (; step < (*change)->switch_step; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    }
    submit_step(world.cluster, world.tensors, step);
  }
  bool has_failed(uint32_t rank) { return world.step_status(rank, step) != StatusCode::kBUSY; }
  // The others have been told, the lacking machine waits for its plan.
  void wait_for_the_others() {
    ASSERT_TRUE(world.cluster.run_until([&] { return has_failed(0) && has_failed(2); }, kSecond));
    ASSERT_FALSE(has_failed(kLacking)) << "its plan was made in place";
  }
  void redo_on(uint32_t rank) {
    world.cluster.request_redo(rank);
    world.cluster.run_for(kMillisecond);
    ASSERT_NO_FATAL_FAILURE(world.take_attempt(rank));
    world.cluster.rank(rank).completions.clear();
    submit_all(world.cluster, world.tensors, rank, step);
  }
  uint64_t version_of(uint32_t rank) {
    const auto* ended = world.cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
    return ended == nullptr ? 0 : ended->record.policy_version;
  }
  // Every rank has the bits of the reference, under the new plan.
  void expect_done() {
    ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(step); }, kSecond));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world.step_status(rank, step), StatusCode::kOK) << world.step_text(rank, step);
      EXPECT_EQ(version_of(rank), version) << "rank " << rank;
    }
    expect_reference(world.cluster, world.tensors, world.shape, step);
  }
};

TEST_F(Lacking, APlanIsMadeWhileTheOthersRedoTheStep) {
  planning_ns = 300 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  fill(world.cluster, world.tensors, step);
  for (const uint32_t rank : {0u, 2u}) ASSERT_NO_FATAL_FAILURE(redo_on(rank));
  world.cluster.run_for(50 * kMillisecond);
  ASSERT_FALSE(has_failed(kLacking));
  ASSERT_TRUE(world.cluster.run_until([&] { return has_failed(kLacking); }, kSecond));
  EXPECT_EQ(world.step_status(kLacking, step), StatusCode::kMISMATCH)
      << world.step_text(kLacking, step);
  ASSERT_NO_FATAL_FAILURE(redo_on(kLacking));
  ASSERT_NO_FATAL_FAILURE(expect_done());
}

TEST_F(Lacking, APlanMayTakeLongerThanAPeerMayBeSilent) {
  planning_ns = 9 * kSecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  world.cluster.run_for(9 * kSecond);
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(version_of(rank), version);
}

// A rank asks to redo before its machine can say yes, and speaks of the step that failed.
TEST_F(Lacking, APlanIsWaitedForByItsRanks) {
  planning_ns = 300 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  world.cluster.request_redo(kLacking);
  world.cluster.run_for(100 * kMillisecond);
  EXPECT_EQ(world.cluster.rank(kLacking).replies.count(Cluster::kRedo), 0u);
  ASSERT_TRUE(world.cluster.end_step(kLacking, step + 1).ok()) << "held until the term begins";
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.cluster.rank(kLacking).replies.count(Cluster::kRedo) > 0; }, kSecond));
  EXPECT_EQ(world.cluster.rank(kLacking).replies[Cluster::kRedo].value1, step);
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
}

TEST_F(Lacking, APlanIsNotAskedForAgainByAStepThatFailsAgain) {
  planning_ns = 300 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  world.cluster.request_redo(0);
  world.cluster.run_for(kMillisecond);
  ASSERT_NO_FATAL_FAILURE(world.take_attempt(0));
  world.cluster.rank(0).completions.clear();
  world.abandon(0, step);  // its Failure and Flush come before the term they are of
  submit_all(world.cluster, world.tensors, 0, step);
  world.cluster.run_for(100 * kMillisecond);
  EXPECT_FALSE(has_failed(0));
  ASSERT_TRUE(world.cluster.run_until([&] { return has_failed(0); }, kSecond));
  EXPECT_EQ(world.step_status(0, step), StatusCode::kSTEP_ABANDONED) << world.step_text(0, step);
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(version_of(rank), version);
}

TEST_F(Lacking, APlanIsOfNoUseToWhatHasFailedForGood) {
  planning_ns = 300 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  world.cluster.kill_rank(2);
  ASSERT_TRUE(world.cluster.run_until([&] { return has_failed(kLacking); }, 100 * kMillisecond));
  EXPECT_EQ(world.step_status(kLacking, step), StatusCode::kRANK_LOST)
      << world.step_text(kLacking, step);
  world.cluster.run_for(kSecond);
  EXPECT_EQ(world.cluster.engine(kLacking).snapshot(0).communicators[0].state, "failed");
}

// Who goes after the failure breaks nothing that others still want.
TEST_F(Lacking, APlanIsNoReasonToMissWhoHasLeft) {
  planning_ns = 300 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(wait_for_the_others());
  world.cluster.close_communicator(2);
  world.cluster.run_for(100 * kMillisecond);
  EXPECT_FALSE(has_failed(kLacking)) << world.step_text(kLacking, step);
  ASSERT_TRUE(world.cluster.run_until([&] { return has_failed(kLacking); }, kSecond));
  EXPECT_EQ(world.step_status(kLacking, step), StatusCode::kMISMATCH)
      << world.step_text(kLacking, step);
}

// A group of the attempt that failed had completed, with its error written.
TEST(Abandoned, AStepIsRedoneWithTheResidualsOfTheStepBefore) {
  const auto trained = [](bool failing) {
    ClusterOptions options;
    options.policy.default_codec = {.codec = 3, .bits = 3, .flags = CodecSpec::kFeedback};
    options.policy.default_codec.bucket = 512;
    options.policy.group_bytes = 1;
    World world({1, 1}, options, /*raw=*/false);
    run_step(world.cluster, world.tensors, 0);
    if (failing) {
      fill(world.cluster, world.tensors, 1);
      for (uint32_t r : {0u, 1u}) {
        EXPECT_TRUE(world.cluster.submit(r, 1, 3, world.tensors[3]).ok());
      }
      world.cluster.run_for(kSecond / 100);
      EXPECT_TRUE(world.cluster.submit(1, 1, 3, world.tensors[3]).ok());
      world.cluster.run_for(kSecond / 100);
      world.ask_for_redo(1);
    }
    run_step(world.cluster, world.tensors, 1);
    const Tensor& tensor = world.tensors[3];
    const float* const data = world.cluster.rank(0).at<float>(tensor.offset);
    return std::vector<float>(data, data + tensor.elements);
  };
  const std::vector<float> redone = trained(true);
  EXPECT_EQ(redone, trained(false));
}

}  // namespace
}  // namespace cgx::sim
