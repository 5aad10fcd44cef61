// Steps and calls on whole simulated clusters without faults: the right bits, on every rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "tests/sim/frames.h"
#include "tests/sim/training.h"

namespace cgx::sim {
namespace {

class ClusterShapes : public ::testing::TestWithParam<std::vector<uint32_t>> {};

TEST_P(ClusterShapes, RawStepsGiveTheReferenceBits) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    Cluster cluster({.ranks_per_machine = GetParam(), .policy = raw_policy()});
    cluster.create();
    ASSERT_EQ(cluster.rank(0).replies[Cluster::kCreate].code, StatusCode::kOK)
        << cluster.rank(0).replies[Cluster::kCreate].message;
    std::vector<Tensor> tensors = some_tensors(op);
    cluster.commit(tensors);
    ASSERT_EQ(cluster.rank(0).replies[Cluster::kCommit].code, StatusCode::kOK)
        << cluster.rank(0).replies[Cluster::kCommit].message;
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
      ASSERT_NO_FATAL_FAILURE(expect_reference(cluster, tensors, GetParam(), step));
    }
  }
}

TEST_P(ClusterShapes, QuantizedStepsAreEqualOnAllRanksAndClose) {
  for (uint8_t flags : {uint8_t{CodecSpec::kStochastic}, uint8_t{CodecSpec::kFeedback}}) {
    scheduler::Policy policy;
    policy.default_codec.flags = flags;
    policy.group_bytes = 32 * 1024;
    Cluster cluster({.ranks_per_machine = GetParam(), .policy = policy});
    cluster.create();
    std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
    cluster.commit(tensors);
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
      for (uint32_t t = 0; t < tensors.size(); ++t) {
        const float* const first = cluster.rank(0).at<float>(tensors[t].offset);
        for (uint32_t r = 1; r < cluster.size(); ++r) {
          ASSERT_EQ(0, std::memcmp(first, cluster.rank(r).at<float>(tensors[t].offset),
                                   tensors[t].elements * sizeof(float)))
              << "step " << step << " rank " << r << " tensor " << t;
        }
        for (uint64_t i = 0; i < tensors[t].elements; ++i) {
          ASSERT_NEAR(first[i], expected(GetParam(), ReduceOp::kAvg, step, t, i), 4.0)
              << "step " << step << " tensor " << t << " element " << i;
        }
      }
    }
  }
}

TEST_P(ClusterShapes, CallsGiveTheReferenceBits) {
  Cluster cluster({.ranks_per_machine = GetParam()});
  cluster.create();
  uint64_t number = 0;
  for (uint64_t elements :
       {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{9000}, uint64_t{150'000}}) {
    const std::vector<Tensor> tensors = {
        {.name = "call", .elements = elements, .shape = {}, .offset = 64}};
    fill(cluster, tensors, number);
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      ASSERT_TRUE(cluster.call(r, number, DType::kF32, ReduceOp::kAvg, elements, 64).ok());
    }
    ASSERT_TRUE(cluster.run_until([&] {
      for (uint32_t r = 0; r < cluster.size(); ++r) {
        if (cluster.rank(r).find(CGX_COMPLETE_CALL, number) == nullptr) return false;
      }
      return true;
    }));
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      ASSERT_EQ(cluster.rank(r).find(CGX_COMPLETE_CALL, number)->record.status, 0);
      const float* const data = cluster.rank(r).at<float>(64);
      for (uint64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(data[i], expected(GetParam(), ReduceOp::kAvg, number, 0, i)) << elements;
      }
    }
    ++number;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ClusterShapes,
                         ::testing::Values(std::vector<uint32_t>{1}, std::vector<uint32_t>{3},
                                           std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{2, 1},
                                           std::vector<uint32_t>{1, 3, 2},
                                           std::vector<uint32_t>{1, 1, 1, 1},
                                           std::vector<uint32_t>(16, 1)));

// The other machine's rank is late: frames of more groups would find no room there.
TEST(Window, BoundsTheGroupsUnderWay) {
  for (uint32_t window : {1u, 2u, 3u}) {
    ClusterOptions options{.policy = raw_policy()};
    options.policy.window = window;
    options.policy.group_bytes = 1;  // a group per tensor
    Cluster cluster(options);
    cluster.create();
    std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);
    cluster.commit(tensors);
    std::set<uint32_t> groups;
    cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
      if (machine == 1 && is_data(frame)) groups.insert(header_of(frame).group);
    });
    fill(cluster, tensors, 0);
    submit_all(cluster, tensors, 0, 0);
    cluster.run_for(100'000'000);
    EXPECT_EQ(groups.size(), window);
    submit_all(cluster, tensors, 1, 0);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(0); }));
    ASSERT_NO_FATAL_FAILURE(expect_reference(cluster, tensors, {1, 1}, 0));
  }
}

class Absence : public ::testing::TestWithParam<scheduler::CollectiveWish> {};

TEST_P(Absence, FillsRanksThatSubmittedNothingAndLeavesWhatNobodyHas) {
  ClusterOptions options{.ranks_per_machine = {2, 1}, .policy = raw_policy()};
  options.policy.collective = GetParam();
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);
  cluster.commit(tensors);
  for (uint64_t step = 0; step < 3; ++step) {
    fill(cluster, tensors, step);
    // Tensor 0 only on rank 2, tensor 3 on nobody, the others everywhere.
    for (uint32_t r = 0; r < 3; ++r) {
      for (uint32_t t : {1u, 2u, 4u}) ASSERT_TRUE(cluster.submit(r, step, t, tensors[t]).ok());
    }
    ASSERT_TRUE(cluster.submit(2, step, 0, tensors[0]).ok());
    for (uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(cluster.end_step(r, step).ok());
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    for (uint32_t r = 0; r < 3; ++r) {
      const float* const filled = cluster.rank(r).at<float>(tensors[0].offset);
      const float* const untouched = cluster.rank(r).at<float>(tensors[3].offset);
      for (uint64_t i = 0; i < tensors[0].elements; ++i) ASSERT_EQ(filled[i], value(step, 2, 0, i));
      for (uint64_t i = 0; i < tensors[3].elements; ++i) {
        ASSERT_EQ(untouched[i], value(step, r, 3, i));
      }
      int outcomes[4] = {};
      for (const auto& completion : cluster.rank(r).completions) {
        const cgx_completion_record& record = completion.record;
        if (record.kind == CGX_COMPLETE_TENSOR && record.step == step) ++outcomes[record.outcome];
      }
      EXPECT_EQ(outcomes[CGX_OUTCOME_RESULT], r == 2 ? 4 : 3);
      EXPECT_EQ(outcomes[CGX_OUTCOME_FILLED], r == 2 ? 0 : 1);
      EXPECT_EQ(outcomes[CGX_OUTCOME_ABSENT], 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, Absence,
                         ::testing::Values(scheduler::CollectiveWish::kScatter,
                                           scheduler::CollectiveWish::kAllgather));

TEST(Policy, SwitchesEveryRankAtTheAnnouncedStep) {
  Cluster cluster({.ranks_per_machine = {2, 1, 1}});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  cluster.commit(tensors);
  uint64_t step = 0;
  for (; step < 6; ++step) ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
  scheduler::Policy eight_bits;
  eight_bits.default_codec.bits = 8;
  Result<scheduler::PolicyChange> change = internal_error("no answer");
  cluster.engine(1).apply_policy({.job = "job", .policy = eight_bits},
                                 [&](const auto& answer) { change = answer; });
  ASSERT_TRUE(cluster.run_until([&] { return change.status().message() != "no answer"; }));
  ASSERT_TRUE(change.ok()) << change.status().to_string();
  for (; step < change->switch_step + 3; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      const uint64_t version = cluster.rank(r).find(CGX_COMPLETE_STEP, step)->record.policy_version;
      EXPECT_EQ(version, step < change->switch_step ? 1 : change->policy_version)
          << "rank " << r << " step " << step;
    }
  }
}

// On every machine: the coordinator plans, the others prepare what it says.
TEST(Policy, IsMatchedWithATableOnceHoweverManyPlansAreMade) {
  Cluster cluster({.ranks_per_machine = {1, 1}});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  cluster.commit(tensors);
  const auto decisions = [&](uint32_t machine) {
    return cluster.engine(machine).snapshot(0).communicators.at(0).plan->decisions;
  };
  const scheduler::DecisionsPtr first[] = {decisions(0), decisions(1)};
  uint64_t step = 0, switched = UINT64_MAX;
  const auto apply = [&](const scheduler::Policy& policy) {
    switched = UINT64_MAX;
    cluster.engine(0).apply_policy({.job = "job", .policy = policy}, [&](const auto& answer) {
      ASSERT_TRUE(answer.ok()) << answer.status().to_string();
      switched = answer->switch_step;
    });
    ASSERT_TRUE(cluster.run_until([&] { return switched != UINT64_MAX; }));
    while (step <= switched) ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step++));
  };
  while (step < 6) ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step++));  // and reorders
  scheduler::Policy policy;
  policy.default_codec.bits = 8;
  ASSERT_NO_FATAL_FAILURE(apply(policy));
  for (uint32_t machine : {0u, 1u}) EXPECT_EQ(decisions(machine), first[machine]);
  policy.rules = {{"linear", {.codec = 0, .bucket = 512}}};
  ASSERT_NO_FATAL_FAILURE(apply(policy));
  for (uint32_t machine : {0u, 1u}) {
    EXPECT_NE(decisions(machine), first[machine]);
    EXPECT_EQ(decisions(machine)->reason(3), "rule 1: linear");
  }
}

}  // namespace
}  // namespace cgx::sim
