// Error feedback that outlives its communicator: the next one of the name goes on with it, where
// all machines kept the same step's, and begins at zero otherwise.
#include <gmock/gmock.h>

#include "tests/sim/training.h"

namespace cgx::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kHalf = 3;  // steps

scheduler::Policy feedback_policy() {
  scheduler::Policy policy;
  policy.default_codec = {.codec = 3, .bits = 2, .flags = CodecSpec::kFeedback, .bucket = 512};
  policy.group_bytes = 1;
  return policy;
}

struct Lives {
  Cluster cluster{{.ranks_per_machine = {2, 1, 1}, .policy = feedback_policy()}};
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);

  void meet(uint64_t first_step) {
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      cluster.create_on(r, [&](auto& message) { message.first_step = first_step; });
    }
    ASSERT_TRUE(cluster.run_until([&] { return answered(Cluster::kCreate); }));
  }
  void begin(uint64_t first_step) {
    ASSERT_NO_FATAL_FAILURE(meet(first_step));
    for (uint32_t r = 0; r < cluster.size(); ++r) cluster.rank(r).completions.clear();
    cluster.commit(tensors);
  }
  bool answered(uint32_t request) {
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      if (cluster.rank(r).replies.count(request) == 0) return false;
    }
    return true;
  }
  void run(uint64_t first, uint64_t end) {
    for (uint64_t step = first; step < end; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
    }
  }
  void close() {
    for (uint32_t r = 0; r < cluster.size(); ++r) cluster.close_communicator(r);
    cluster.run_for(kSecond / 10);
    for (uint32_t r = 0; r < cluster.size(); ++r) cluster.rank(r).replies.clear();
  }
  void wait(int64_t ns) {  // though nothing may happen meanwhile
    cluster.wake_at(cluster.now_ns() + ns);
    cluster.run_for(ns);
  }
  std::vector<float> result() {
    const float* const data = cluster.rank(0).at<float>(tensors[3].offset);
    return {data, data + tensors[3].elements};
  }
  uint64_t reserved(uint32_t machine) {
    const auto shown = cluster.engine(machine).snapshot(static_cast<uint64_t>(cluster.now_ns()));
    return shown.communicators.at(0).reserved_bytes;
  }
  uint64_t kept(uint32_t machine) {
    return cluster.engine(machine).snapshot(static_cast<uint64_t>(cluster.now_ns())).residual_bytes;
  }
};

std::vector<float> of_one_life() {
  Lives one;
  one.begin(0);
  one.run(0, 2 * kHalf);
  return one.result();
}

std::vector<float> without_a_first_half() {
  Lives late;
  late.begin(kHalf);
  late.run(kHalf, 2 * kHalf);
  return late.result();
}

TEST(ResidualsKept, LetANewCommunicatorOfTheNameGoOnAsTheOldOneWouldHave) {
  Lives lives;
  lives.begin(0);
  lives.run(0, kHalf);
  EXPECT_EQ(lives.kept(0), 0u) << "borrowed";
  lives.close();
  EXPECT_GT(lives.kept(0), 0u);
  lives.begin(kHalf);
  EXPECT_EQ(lives.kept(0), 0u) << "borrowed again";
  lives.run(kHalf, 2 * kHalf);
  EXPECT_EQ(lives.result(), of_one_life());
  EXPECT_NE(lives.result(), without_a_first_half());
  EXPECT_THAT(lives.cluster.events(),
              Contains(HasSubstr("error feedback goes on with what was kept")).Times(3));
}

TEST(ResidualsKept, OfAStepThatFailedHalfWayAreThoseOfTheStepBefore) {
  Lives lives;
  lives.begin(0);
  lives.run(0, kHalf);
  fill(lives.cluster, lives.tensors, kHalf);
  submit_all(lives.cluster, lives.tensors, 0, kHalf);
  submit_all(lives.cluster, lives.tensors, 1, kHalf);
  submit_all(lives.cluster, lives.tensors, 2, kHalf);
  // Rank 3 has come with one tensor only, whose group completes.
  ASSERT_TRUE(lives.cluster.submit(3, kHalf, 3, lives.tensors[3]).ok());
  lives.cluster.run_for(kSecond / 10);
  lives.close();
  lives.begin(kHalf);
  lives.run(kHalf, 2 * kHalf);
  EXPECT_EQ(lives.result(), of_one_life());
}

// A life that completes no step has changed nothing, whatever it calls its first step.
TEST(ResidualsKept, SurviveALifeInWhichNoStepCompletes) {
  Lives lives;
  lives.begin(0);
  lives.run(0, kHalf);
  lives.close();
  lives.begin(0);  // numbered anew
  lives.close();
  lives.meet(kHalf);  // and nothing is committed
  lives.close();
  EXPECT_GT(lives.kept(0), 0u);
  lives.begin(kHalf);
  lives.run(kHalf, 2 * kHalf);
  EXPECT_EQ(lives.result(), of_one_life());
}

TEST(ResidualsKept, BeginAtZeroWhereAMachineHasLostThem) {
  Lives lives;
  lives.begin(0);
  lives.run(0, kHalf);
  lives.close();
  lives.cluster.say_goodbye(3);  // its job has no session on that machine any more
  lives.wait(61 * kSecond);
  EXPECT_EQ(lives.kept(2), 0u);
  EXPECT_GT(lives.kept(0), 0u) << "the job is still here";
  lives.cluster.rank(3).alive = true;
  lives.cluster.rank(3).session =
      lives.cluster.engine(2).open_session({.job = "job"}, lives.cluster.rank(3)).value();
  ASSERT_TRUE(lives.cluster.engine(2)
                  .add_arena(lives.cluster.rank(3).session, 0, lives.cluster.rank(3).arena())
                  .ok());
  lives.begin(kHalf);
  lives.run(kHalf, 2 * kHalf);
  EXPECT_EQ(lives.result(), without_a_first_half());
  EXPECT_EQ(lives.kept(0), 0u);
  EXPECT_THAT(lives.cluster.events(),
              Contains(HasSubstr("error feedback begins at zero")).Times(2));
}

// They would be charged from run to run, until there is no room for any.
TEST(ResidualsKept, OfTensorsThatAreNoMoreGoAfterSomeSteps) {
  Lives lives;
  lives.begin(0);
  lives.run(0, 12);
  const uint64_t of_one = lives.reserved(0);
  lives.close();
  const uint64_t of_residuals = lives.kept(0);
  for (Tensor& tensor : lives.tensors) tensor.name = "renamed." + tensor.name;
  lives.begin(12);
  EXPECT_GT(lives.reserved(0), of_one + of_residuals / 2);
  lives.run(12, 24);
  EXPECT_LT(lives.reserved(0), of_one + of_residuals / 2);
}

TEST(ResidualsKept, GoAMinuteAfterTheJobsLastSession) {
  Lives lives;
  lives.begin(0);
  lives.run(0, kHalf);
  for (uint32_t r = 0; r < lives.cluster.size(); ++r) lives.cluster.say_goodbye(r);
  lives.wait(59 * kSecond);
  EXPECT_GT(lives.kept(0), 0u);
  lives.wait(2 * kSecond);
  for (uint32_t machine = 0; machine < 3; ++machine) EXPECT_EQ(lives.kept(machine), 0u);
}

}  // namespace
}  // namespace cgx::sim
