// Sites that take time or fail, in whole clusters: the same bits, and nothing let go of too early.
#include <gtest/gtest.h>

#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr int64_t kLongNs = 300'000'000;

SlowSiteOptions late(int64_t ns) {
  return {.takes_ns = [ns](const auto&, const auto&) { return ns; }};
}
SlowSiteOptions shuffled() {
  return {.takes_ns = [n = uint64_t{0}](const auto&, const auto&) mutable {
    return static_cast<int64_t>(++n * 0x9E3779B97F4A7C15ull >> 44);  // up to a millisecond
  }};
}
SlowSiteOptions priced() {
  return {.takes_ns = price_ns, .consumes = true, .one_core = true};
}

// Machine 1's arithmetic takes that long, the others' nothing.
ClusterOptions with_late_machine(int64_t ns) {
  ClusterOptions options;
  options.site = [ns](uint32_t machine) { return machine == 1 ? late(ns) : SlowSiteOptions{}; };
  return options;
}

// What three steps of a policy leave in the arena of rank 0.
std::vector<std::byte> trained(const std::vector<uint32_t>& shape, const scheduler::Policy& policy,
                               const std::function<SlowSiteOptions(uint32_t)>& site) {
  Cluster cluster({.ranks_per_machine = shape, .policy = policy, .site = site});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  cluster.commit(tensors);
  for (uint64_t step = 0; step < 3; ++step) run_step(cluster, tensors, step);
  const std::span<std::byte> arena = cluster.rank(0).arena();
  return {arena.begin(), arena.end()};
}

class Sites : public ::testing::TestWithParam<scheduler::CollectiveWish> {};

TEST_P(Sites, GiveTheSameBitsWhereverAndWheneverTheyCompute) {
  scheduler::Policy policy;
  policy.default_codec.flags = CodecSpec::kFeedback;
  policy.collective = GetParam();
  policy.min_elements = 16;
  std::vector<std::vector<uint32_t>> shapes = {{2, 1}, {1, 2, 1}};
  if (GetParam() == scheduler::CollectiveWish::kTwoLevel) {
    policy.rack_machines = 2;
    shapes = {{1, 2, 1, 1}};
  }
  for (const std::vector<uint32_t>& shape : shapes) {
    const std::vector<std::byte> here = trained(shape, policy, {});
    EXPECT_EQ(here, trained(shape, policy, [](uint32_t) { return late(50'000); }));
    EXPECT_EQ(here, trained(shape, policy, [](uint32_t) { return shuffled(); }));
    EXPECT_EQ(here, trained(shape, policy, [](uint32_t) { return priced(); }));
    EXPECT_EQ(here, trained(shape, policy, [](uint32_t machine) {
                return machine == 0 ? shuffled() : SlowSiteOptions{};
              }));
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, Sites,
                         ::testing::Values(scheduler::CollectiveWish::kScatter,
                                           scheduler::CollectiveWish::kAllgather,
                                           scheduler::CollectiveWish::kTwoLevel));

TEST(SiteTime, IsPartOfAStepsTime) {
  const auto step_ns = [](const std::function<SlowSiteOptions(uint32_t)>& site) {
    ClusterOptions options;
    options.site = site;
    World world({1, 1}, options);
    const int64_t began_ns = world.cluster.now_ns();
    run_step(world.cluster, world.tensors, 0);
    return world.cluster.now_ns() - began_ns;
  };
  // A nanosecond a byte; each machine encodes half of the 100 kB, reduces half and decodes half.
  const int64_t bytes = 25'015 * 4;
  const int64_t more_ns = step_ns([](uint32_t) { return priced(); }) - step_ns({});
  EXPECT_GT(more_ns, bytes);
  EXPECT_LT(more_ns, 3 * bytes);
}

TEST(LostSite, EndsTheCommunicatorEverywhereAndNamesTheMachine) {
  for (const uint64_t job : {1, 2, 5, 9}) {
    ClusterOptions options;
    options.site = [job](uint32_t machine) {
      SlowSiteOptions site = machine == 1 ? late(100'000) : SlowSiteOptions{};
      site.fails_at = job;
      return site;
    };
    World world({1, 1, 1}, options);
    submit_step(world.cluster, world.tensors, 0);
    ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      // Who needed nothing more of machine 1 for this step hears it in the next.
      const uint64_t step = world.step_status(rank, 0) == StatusCode::kOK ? 1 : 0;
      EXPECT_TRUE(step == 0 || (job == 9 && rank != 1)) << "job " << job;
      if (step == 1) submit_all(world.cluster, world.tensors, rank, step);
      EXPECT_EQ(world.step_status(rank, step), StatusCode::kDEVICE_LOST) << "job " << job;
      EXPECT_NE(world.step_text(rank, step).find("machine 1"), std::string::npos)
          << world.step_text(rank, step);
    }
  }
}

TEST(LateSite, ARankIsToldOfAFailureWhenItsBuffersAreItsOwnAgain) {
  World world({1, 2}, with_late_machine(kLongNs));
  submit_step(world.cluster, world.tensors, 0);
  world.cluster.run_for(1'000'000);
  const int64_t began_ns = world.cluster.now_ns();
  world.cluster.kill_rank(0);
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.step_status(1, 0) == StatusCode::kRANK_LOST; }, kSecond));
  EXPECT_GT(world.cluster.now_ns() - began_ns, kLongNs - 2'000'000);
  for (const uint32_t rank : {1u, 2u}) {  // whatever they write there now stays
    std::ranges::fill(world.cluster.rank(rank).arena(), std::byte{0x5A});
    world.cluster.run_for(2 * kSecond);
    EXPECT_TRUE(std::ranges::all_of(world.cluster.rank(rank).arena(),
                                    [](std::byte b) { return b == std::byte{0x5A}; }));
  }
}

// All of step 0 but its ends.
void submit_without_end(World& world) {
  fill(world.cluster, world.tensors, 0);
  for (uint32_t rank = 0; rank < world.cluster.size(); ++rank) {
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      ASSERT_TRUE(world.cluster.submit(rank, 0, t, world.tensors[t]).ok());
    }
  }
  world.cluster.run_for(1'000'000);
}

TEST(LateSite, ARankThatEndsItsStepAfterTheFailureIsToldAsLateAsOthers) {
  for (const bool hears_first : {true, false}) {
    World world({1, 2}, with_late_machine(kLongNs));
    ASSERT_NO_FATAL_FAILURE(submit_without_end(world));
    const int64_t began_ns = world.cluster.now_ns();
    world.cluster.kill_rank(0);
    if (hears_first) world.cluster.run_for(1'000'000);
    for (const uint32_t rank : {1u, 2u}) ASSERT_TRUE(world.cluster.end_step(rank, 0).ok());
    for (const uint32_t rank : {1u, 2u}) {
      ASSERT_TRUE(world.cluster.run_until(
          [&] { return world.step_status(rank, 0) == StatusCode::kRANK_LOST; }, kSecond));
      EXPECT_GT(world.cluster.now_ns() - began_ns, kLongNs - 3'000'000) << "rank " << rank;
    }
  }
}

TEST(LateSite, ARankThatEndsItsStepWhileItIsSettledIsToldOfItsEndAsLateAsOthers) {
  World world({1, 2}, with_late_machine(kLongNs));
  ASSERT_NO_FATAL_FAILURE(submit_without_end(world));
  const int64_t began_ns = world.cluster.now_ns();
  ASSERT_TRUE(world.cluster.submit(2, 0, 0, world.tensors[0]).ok());  // gives its pass up
  ASSERT_TRUE(world.cluster.end_step(1, 0).ok());
  world.cluster.kill_rank(0);
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.step_status(1, 0) == StatusCode::kRANK_LOST; }, kSecond));
  EXPECT_GT(world.cluster.now_ns() - began_ns, kLongNs - 3'000'000);
}

// Its peer has done what it could, and waits as well: nobody is stalled.
TEST(LateSite, IsNotBlamedOnItsPeer) {
  for (const uint32_t late_one : {0u, 1u}) {
    ClusterOptions options;
    options.policy.collective = scheduler::CollectiveWish::kScatter;
    options.site = [late_one](uint32_t machine) {
      return machine == late_one ? late(10 * kSecond + kLongNs) : SlowSiteOptions{};
    };
    World world({1, 1}, options);
    submit_step(world.cluster, world.tensors, 0);
    ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, 60 * kSecond));
    for (const uint32_t rank : {0u, 1u}) {
      EXPECT_EQ(world.step_status(rank, 0), StatusCode::kOK) << world.step_text(rank, 0);
    }
  }
}

// It has sent something of the group, and then its site takes longer than any network may.
TEST(LateSite, IsNotStalledBehindAFrameThatItHasSent) {
  for (const uint32_t late_one : {0u, 1u}) {
    ClusterOptions options;
    options.policy.collective = scheduler::CollectiveWish::kScatter;
    options.site = [late_one](uint32_t machine) {
      return SlowSiteOptions{.takes_ns = [=](const auto&, const scheduler::SiteJob& job) {
        const bool late = machine == late_one && job.kind == scheduler::SiteJobKind::kReduce;
        return late ? 100 * kSecond : 0;
      }};
    };
    World world({1, 1, 1}, options);
    submit_step(world.cluster, world.tensors, 0);
    ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, 500 * kSecond));
    for (const uint32_t rank : {0u, 1u, 2u}) {
      EXPECT_EQ(world.step_status(rank, 0), StatusCode::kOK) << world.step_text(rank, 0);
    }
  }
}

// The rank has submitted everything, and its GPU never does what it was told.
class LateGpu : public ::testing::Test {
 protected:
  static ClusterOptions options() {
    ClusterOptions options;
    options.timeout_ms = 60'000;
    options.site = [](uint32_t machine) {
      SlowSiteOptions site = machine == 1 ? late(1000 * kSecond) : SlowSiteOptions{};
      site.waits_for_ranks = machine == 1;
      return site;
    };
    return options;
  }
  static int times_said(const Cluster& cluster, const std::string& text) {
    return static_cast<int>(std::ranges::count_if(cluster.events(), [&](const std::string& event) {
      return event.find(text) != std::string::npos;
    }));
  }
};

TEST_F(LateGpu, IsWarnedOfByItsRankEverywhereAndByTheTensorWhereItIs) {
  World world({1, 1, 1}, options());
  submit_step(world.cluster, world.tensors, 0);
  world.cluster.run_for(7 * kSecond);
  EXPECT_EQ(times_said(world.cluster, "step 0 has waited 5 s for rank 1"), 3);
  EXPECT_EQ(times_said(world.cluster,
                       "5 s for rank 1; the GPU of rank 1 has not finished its "
                       "gradient of tensor '"),
            1);
}

TEST_F(LateGpu, OfACallIsWarnedOfAsWell) {
  World world({1, 1}, options());
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(world.cluster.call(rank, 0, DType::kF32, ReduceOp::kSum, 1000, 0).ok());
  }
  world.cluster.run_for(7 * kSecond);
  EXPECT_EQ(times_said(world.cluster, "call 0 has waited 5 s for rank 1"), 2);
}

TEST_F(LateGpu, IsGivenUpByNameAtTheTimeOut) {
  World world({1, 1}, options());
  submit_step(world.cluster, world.tensors, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, 100 * kSecond));
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(world.step_status(rank, 0), StatusCode::kTIMED_OUT);
    EXPECT_NE(world.step_text(rank, 0).find("60 s for rank 1"), std::string::npos)
        << world.step_text(rank, 0);
  }
}

TEST(LateSite, KeepsTheMemoryOfARankThatDied) {
  World world({1, 2}, with_late_machine(kLongNs));
  submit_step(world.cluster, world.tensors, 0);
  world.cluster.run_for(1'000'000);
  world.cluster.kill_rank(2);
  EXPECT_FALSE(world.cluster.rank(2).released);
  world.cluster.run_for(kLongNs / 2);
  EXPECT_FALSE(world.cluster.rank(2).released);
  world.cluster.run_for(kLongNs);
  EXPECT_TRUE(world.cluster.rank(2).released);
  EXPECT_FALSE(world.cluster.released_memory_touched());
  // Nor do its communicator's other ranks hold it up: everything goes.
  world.cluster.say_goodbye(1);
  world.cluster.run_for(1'000'000);
  EXPECT_TRUE(world.cluster.rank(1).released);
  EXPECT_TRUE(world.cluster.engine(1).snapshot(0).communicators.empty());
}

TEST(LateSite, ACloseIsAnsweredWhenItHasLetGo) {
  World world({1, 2}, with_late_machine(kLongNs));
  Cluster& cluster = world.cluster;
  submit_step(cluster, world.tensors, 0);
  cluster.run_for(1'000'000);
  const std::span<std::byte> arena = cluster.rank(1).arena();
  cluster.rank(1).on_reply = [&](uint32_t) { std::ranges::fill(arena, std::byte{0x5A}); };
  const int64_t began_ns = cluster.now_ns();
  const auto answered = [&] { return cluster.rank(1).replies.count(Cluster::kClose) > 0; };
  cluster.close_communicator(1);
  EXPECT_FALSE(answered()) << "its site has the rank's memory";
  ASSERT_TRUE(cluster.run_until(answered, kSecond));
  EXPECT_GT(cluster.now_ns() - began_ns, kLongNs - 2'000'000);
  EXPECT_EQ(cluster.rank(1).replies[Cluster::kClose].code, StatusCode::kOK);
  cluster.run_for(2 * kSecond);
  EXPECT_TRUE(std::ranges::all_of(arena, [](std::byte b) { return b == std::byte{0x5A}; }));
  EXPECT_EQ(world.step_status(2, 0), StatusCode::kRANK_LOST);
  // Its session goes on, and so does the next close, which has nothing to wait for.
  cluster.rank(1).replies.clear();
  cluster.close_communicator(1);
  EXPECT_TRUE(answered());
}

TEST(LateSite, ACloseIsAnsweredAlsoWhereTheSiteIsLost) {
  ClusterOptions options = with_late_machine(kLongNs);
  options.site = [](uint32_t machine) {
    SlowSiteOptions site = machine == 1 ? late(kLongNs) : SlowSiteOptions{};
    site.fails_at = machine == 1 ? 1 : 0;
    return site;
  };
  World world({1, 1}, options);
  submit_step(world.cluster, world.tensors, 0);
  world.cluster.run_for(1'000'000);
  world.cluster.close_communicator(1);
  EXPECT_EQ(world.cluster.rank(1).replies.count(Cluster::kClose), 0u);
  EXPECT_TRUE(world.cluster.run_until(
      [&] { return world.cluster.rank(1).replies.count(Cluster::kClose) > 0; }, kSecond));
}

TEST(LateSite, ASessionThatEndsBeforeTheAnswerIsForgotten) {
  World world({1, 2}, with_late_machine(kLongNs));
  submit_step(world.cluster, world.tensors, 0);
  world.cluster.run_for(1'000'000);
  world.cluster.close_communicator(1);
  world.cluster.kill_rank(1);
  EXPECT_FALSE(world.cluster.rank(1).released);
  world.cluster.run_for(2 * kLongNs);
  EXPECT_TRUE(world.cluster.rank(1).released);
  EXPECT_EQ(world.cluster.rank(1).replies.count(Cluster::kClose), 0u);
  EXPECT_FALSE(world.cluster.released_memory_touched());
}

TEST(LateSite, ATermBeginsWhenItHasAnswered) {
  World world({1, 1}, with_late_machine(kLongNs));
  submit_all(world.cluster, world.tensors, 1, 0);
  ASSERT_TRUE(world.cluster.submit(0, 0, 3, world.tensors[3]).ok());
  world.cluster.run_for(1'000'000);
  const int64_t began_ns = world.cluster.now_ns();
  world.abandon(0, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.step_status(1, 0) != StatusCode::kBUSY; },
                                      5 * kSecond));
  EXPECT_EQ(world.step_status(1, 0), StatusCode::kSTEP_ABANDONED);
  EXPECT_GT(world.cluster.now_ns() - began_ns, kLongNs - 2'000'000);
  world.expect_redo(0);
}

TEST(LateSite, SendsNothingBehindItsLastWordOfATerm) {
  for (const auto collective :
       {scheduler::CollectiveWish::kScatter, scheduler::CollectiveWish::kAllgather}) {
    ClusterOptions options = with_late_machine(kLongNs);
    options.policy = raw_policy();
    options.policy.collective = collective;
    World world({1, 1}, options, /*raw=*/false);
    bool flushed = false;
    uint32_t behind = 0;
    world.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
      if (machine != 0 || header_of(frame).term != 0) return;
      if (is_data(frame)) behind += flushed;
      flushed |= carries<scheduler::Flush>(frame);
    });
    submit_all(world.cluster, world.tensors, 1, 0);
    world.cluster.run_for(1'000'000);
    world.abandon(0, 0);
    ASSERT_TRUE(world.cluster.run_until(
        [&] { return world.step_status(1, 0) != StatusCode::kBUSY; }, 5 * kSecond));
    EXPECT_TRUE(flushed);
    EXPECT_EQ(behind, 0u);
    world.expect_redo(0);
  }
}

// Machine 0 has everything and completes; what machine 1 lacks is on its way when the next step
// fails.
TEST(LateSite, CombinesWhatComesBehindTheFailureOfTheNextStep) {
  SlowLink link{.from = 2, .to = 1, .slow_ns = 50'000'000};
  ClusterOptions options = link.options();
  options.site = [](uint32_t machine) { return machine == 1 ? late(10'000) : SlowSiteOptions{}; };
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kAllgather;
  World world({1, 1, 1}, options, /*raw=*/false);
  link.slow = true;
  submit_step(world.cluster, world.tensors, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.step_status(0, 0) == StatusCode::kOK; },
                                      link.slow_ns / 2));
  ASSERT_EQ(world.step_status(1, 0), StatusCode::kBUSY);
  world.abandon(0, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, 5 * kSecond));
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world.step_status(rank, 0), StatusCode::kOK);
  link.slow = false;
  world.expect_redo(1);
}

TEST(LateSite, ACallThatFailsIsAnsweredWhenItHasLetGo) {
  World world({1, 1}, with_late_machine(kLongNs));
  const uint64_t elements = 1000, offset = world.tensors[0].offset;
  ASSERT_TRUE(world.cluster.call(1, 0, DType::kF32, ReduceOp::kSum, elements, offset).ok());
  world.cluster.run_for(1'000'000);
  const int64_t began_ns = world.cluster.now_ns();
  ASSERT_TRUE(world.cluster.call(0, 0, DType::kF32, ReduceOp::kSum, elements + 1, offset).ok());
  ASSERT_TRUE(world.cluster.run_until([&] { return world.call_status(1, 0) != StatusCode::kBUSY; },
                                      5 * kSecond));
  EXPECT_EQ(world.call_status(0, 0), StatusCode::kMISMATCH);
  EXPECT_EQ(world.call_status(1, 0), StatusCode::kMISMATCH);
  EXPECT_GT(world.cluster.now_ns() - began_ns, kLongNs - 2'000'000);
  // Later calls go on.
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(world.cluster.call(rank, 1, DType::kF32, ReduceOp::kSum, elements, offset).ok());
  }
  ASSERT_TRUE(world.cluster.run_until([&] { return world.call_status(1, 1) == StatusCode::kOK; },
                                      5 * kSecond));
}

}  // namespace
}  // namespace cgx::sim
