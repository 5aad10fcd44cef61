// Bad days on a simulated cluster: everybody who waits gets a status that names the culprit, and
// what can be redone gives the right bits.
#include <numeric>

#include "tests/sim/training.h"

namespace cgx::sim {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct World {
  std::vector<uint32_t> shape;
  Cluster cluster;
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);

  explicit World(std::vector<uint32_t> ranks_per_machine, ClusterOptions options = {})
      : shape(std::move(ranks_per_machine)), cluster([&] {
          options.ranks_per_machine = shape;
          options.policy = raw_policy();
          return options;
        }()) {
    cluster.create();
    cluster.commit(tensors);
  }
  StatusCode step_status(uint32_t rank, uint64_t step) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
    return ended == nullptr ? StatusCode::kBUSY : static_cast<StatusCode>(ended->record.status);
  }
  std::string step_text(uint32_t rank, uint64_t step) {
    const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
    return ended == nullptr ? "" : ended->text;
  }
  void take_attempt(uint32_t rank) {
    ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kRedo), 1u);
    cluster.rank(rank).attempt =
        static_cast<uint32_t>(cluster.rank(rank).replies[Cluster::kRedo].value0);
  }
  // All living ranks redo `step` under the new attempt and must get the reference bits.
  void expect_redo(uint64_t step) {
    for (uint32_t r = 0; r < cluster.size(); ++r) cluster.request_redo(r);
    ASSERT_TRUE(cluster.run_until([&] {
      for (uint32_t r = 0; r < cluster.size(); ++r) {
        if (cluster.rank(r).replies.count(Cluster::kRedo) == 0) return false;
      }
      return true;
    }));
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      const wire::Reply& reply = cluster.rank(r).replies[Cluster::kRedo];
      ASSERT_EQ(reply.code, StatusCode::kOK) << reply.message;
      ASSERT_EQ(reply.value1, step);
      cluster.rank(r).attempt = static_cast<uint32_t>(reply.value0);
      cluster.rank(r).completions.clear();
    }
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
    expect_reference(cluster, tensors, shape, step);
  }
};

TEST(RankLost, IsToldToEveryWaiterByName) {
  World world({2, 1, 1});
  run_step(world.cluster, world.tensors, 0);
  fill(world.cluster, world.tensors, 1);
  for (uint32_t r : {0u, 2u, 3u}) submit_all(world.cluster, world.tensors, r, 1);
  world.cluster.run_for(kSecond / 10);
  world.cluster.kill_rank(1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, kSecond));
  for (uint32_t r : {0u, 2u, 3u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kRANK_LOST);
    EXPECT_NE(world.step_text(r, 1).find("rank 1"), std::string::npos) << world.step_text(r, 1);
  }
}

TEST(RankLost, RefusesLaterSubmitsWithTheSameCause) {
  World world({1, 1});
  world.cluster.kill_rank(0);
  world.cluster.run_for(kSecond / 10);
  submit_all(world.cluster, world.tensors, 1, 0);
  EXPECT_EQ(world.step_status(1, 0), StatusCode::kRANK_LOST);
}

TEST(PeerLost, IsNoticedWhenTheDaemonDies) {
  World world({1, 1, 1});
  run_step(world.cluster, world.tensors, 0);
  fill(world.cluster, world.tensors, 1);
  for (uint32_t r : {0u, 1u}) submit_all(world.cluster, world.tensors, r, 1);
  world.cluster.kill_daemon(2);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, 4 * kSecond));
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kPEER_LOST);
    EXPECT_NE(world.step_text(r, 1).find("machine 2"), std::string::npos) << world.step_text(r, 1);
  }
}

TEST(PeerLost, IsNoticedByItsSilenceWhenTheDaemonIsStopped) {
  World world({1, 1});
  run_step(world.cluster, world.tensors, 0);
  world.cluster.stop_daemon(1);
  const int64_t before = world.cluster.now_ns();
  submit_step(world.cluster, world.tensors, 1);
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.step_status(0, 1) == StatusCode::kPEER_LOST; }, 6 * kSecond));
  EXPECT_LE(world.cluster.now_ns() - before, 5 * kSecond);
}

TEST(Joining, AFirstStepOfItsOwnIsToldToEveryRankWhoeverComesFirst) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {1, 1}, {2, 1}, {1, 2}}) {
    const uint32_t ranks = std::accumulate(shape.begin(), shape.end(), 0u);
    for (uint32_t odd = 0; odd < ranks; ++odd) {
      for (uint32_t first = 0; first < ranks; ++first) {
        Cluster cluster({.ranks_per_machine = shape});
        for (uint32_t i = 0; i < ranks; ++i) {
          const uint32_t rank = (first + i) % ranks;
          cluster.create_on(rank, [&](auto& message) { message.first_step = rank == odd ? 5 : 4; });
        }
        cluster.run_for(kSecond / 10);
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kCreate), 1u) << "rank " << rank;
          EXPECT_EQ(cluster.rank(rank).replies[Cluster::kCreate].code, StatusCode::kMISMATCH);
        }
      }
    }
  }
}

// Links of an earlier communicator are up already: the failure is told before the last one comes.
TEST(Joining, ARankLostMeanwhileIsToldToWhoComesLastAndTheNextMeetingSucceeds) {
  const auto meeting = [](uint32_t number) {
    return [number](wire::CreateCommunicator& message) {
      message.comm = 8;
      message.name = "second";
      message.meeting = number;
      if (number > 1) message.members.pop_back();  // without rank 3
    };
  };
  for (uint32_t victim = 0; victim < 4; ++victim) {
    for (uint32_t last = 0; last < 4; ++last) {
      if (last == victim) continue;
      SCOPED_TRACE("victim " + std::to_string(victim) + ", last " + std::to_string(last));
      Cluster cluster({.ranks_per_machine = {2, 1, 1}});
      cluster.create();
      const auto expect_told = [&](uint32_t rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kCreate), 1u);
        EXPECT_EQ(cluster.rank(rank).replies[Cluster::kCreate].code, StatusCode::kRANK_LOST);
        cluster.close_communicator(rank, 8);  // as libcgx does
      };
      for (uint32_t rank = 0; rank < 4; ++rank) {
        if (rank != last) cluster.create_on(rank, meeting(1));
      }
      cluster.run_for(kSecond / 10);
      cluster.kill_rank(victim);
      cluster.run_for(kSecond / 10);
      for (uint32_t rank = 0; rank < 4; ++rank) {
        if (rank != last && rank != victim) expect_told(rank);
      }
      cluster.run_for(kSecond);
      cluster.create_on(last, meeting(1));
      cluster.run_for(kSecond / 10);
      expect_told(last);
      if (victim != 3) continue;
      for (uint32_t rank = 0; rank < 3; ++rank) cluster.create_on(rank, meeting(2));
      cluster.run_for(kSecond / 10);
      for (uint32_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(cluster.rank(rank).replies[Cluster::kCreate].code, StatusCode::kOK);
      }
    }
  }
}

TEST(Abandoned, FailsTheStepEverywhereAndItCanBeRedone) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {1, 1}, {2, 1, 1}}) {
    World world(shape);
    run_step(world.cluster, world.tensors, 0);
    fill(world.cluster, world.tensors, 1);
    const uint32_t last = world.cluster.size() - 1;
    for (uint32_t r = 0; r < last; ++r) submit_all(world.cluster, world.tensors, r, 1);
    world.cluster.run_for(kSecond / 100);
    ASSERT_TRUE(world.cluster.submit(last, 1, 0, world.tensors[0]).ok());
    ASSERT_TRUE(world.cluster.submit(last, 1, 0, world.tensors[0]).ok());
    world.cluster.run_for(kSecond / 100);
    EXPECT_EQ(world.step_status(0, 1), StatusCode::kSTEP_ABANDONED);
    EXPECT_NE(world.step_text(0, 1).find("rank " + std::to_string(last)), std::string::npos);
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
    world.cluster.rank(0).completions.clear();
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 2));
  }
}

TEST(Abandoned, SubmitsOfTheOldAttemptAreRefusedUntilTheRankAsksToRedo) {
  World world({1, 1});
  submit_all(world.cluster, world.tensors, 0, 0);
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  world.cluster.run_for(kSecond);
  world.cluster.rank(1).completions.clear();
  ASSERT_TRUE(world.cluster.submit(1, 0, 1, world.tensors[1]).ok());
  const auto* refused = world.cluster.rank(1).find(CGX_COMPLETE_TENSOR, 0);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(static_cast<StatusCode>(refused->record.status), StatusCode::kSTEP_ABANDONED);
  EXPECT_EQ(refused->record.attempt, 0u);
}

TEST(Abandoned, AStragglerOfTheOldAttemptDoesNotHarmTheNewOne) {
  World world({2});
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  world.cluster.request_redo(1);
  world.cluster.run_for(kSecond / 100);
  world.cluster.rank(1).completions.clear();
  world.take_attempt(1);
  fill(world.cluster, world.tensors, 0);
  submit_all(world.cluster, world.tensors, 1, 0);
  submit_all(world.cluster, world.tensors, 0, 0);  // sent before rank 0 heard of the failure
  world.cluster.request_redo(0);
  world.cluster.run_for(kSecond / 100);
  world.cluster.rank(0).completions.clear();
  world.take_attempt(0);
  submit_all(world.cluster, world.tensors, 0, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }));
  for (uint32_t r = 0; r < 2; ++r) EXPECT_EQ(world.step_status(r, 0), StatusCode::kOK);
}

TEST(StepOrder, IsCheckedAtOnce) {
  World world({1});
  ASSERT_TRUE(world.cluster.submit(0, 3, 0, world.tensors[0]).ok());
  const auto* refused = world.cluster.rank(0).find(CGX_COMPLETE_TENSOR, 3);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(static_cast<StatusCode>(refused->record.status), StatusCode::kSTEP_ORDER);
}

TEST(Tables, ThatDifferAreNamedOnEveryRank) {
  Cluster cluster({.ranks_per_machine = {1, 1, 1}, .policy = raw_policy()});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);
  for (uint32_t r = 0; r < 3; ++r) {
    std::vector<Tensor> mine = tensors;
    if (r == 2) mine[3].elements = 7;
    cluster.register_on(r, mine);
    cluster.request_commit(r, 5);
  }
  cluster.run_for(kSecond / 5);
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_EQ(cluster.rank(r).replies.count(Cluster::kCommit), 1u);
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, StatusCode::kMISMATCH);
    EXPECT_NE(reply.message.find("linear.weight"), std::string::npos) << reply.message;
    EXPECT_NE(reply.message.find("rank 2"), std::string::npos) << reply.message;
  }
}

TEST(Calls, ThatDifferFailEverywhereNamingBothAndTheNextOneWorks) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {1, 1}, {2, 1}}) {
    Cluster cluster({.ranks_per_machine = shape});
    cluster.create();
    const uint32_t last = cluster.size() - 1;
    for (uint32_t r = 0; r <= last; ++r) {
      ASSERT_TRUE(cluster.call(r, 0, DType::kF32, ReduceOp::kSum, r == last ? 11 : 10, 0).ok());
    }
    const int64_t before = cluster.now_ns();
    ASSERT_TRUE(cluster.run_until([&] {
      for (uint32_t r = 0; r <= last; ++r) {
        if (cluster.rank(r).find(CGX_COMPLETE_CALL, 0) == nullptr) return false;
      }
      return true;
    }));
    EXPECT_LE(cluster.now_ns() - before, 200'000'000);
    for (uint32_t r = 0; r <= last; ++r) {
      const auto* failed = cluster.rank(r).find(CGX_COMPLETE_CALL, 0);
      EXPECT_EQ(static_cast<StatusCode>(failed->record.status), StatusCode::kMISMATCH);
      EXPECT_NE(failed->text.find("fp32[10] sum"), std::string::npos) << failed->text;
      EXPECT_NE(failed->text.find("fp32[11] sum"), std::string::npos) << failed->text;
      ASSERT_TRUE(cluster.call(r, 1, DType::kF32, ReduceOp::kSum, 10, 0).ok());
    }
    EXPECT_TRUE(cluster.run_until(
        [&] { return cluster.rank(0).find(CGX_COMPLETE_CALL, 1) != nullptr; }, kSecond));
    EXPECT_EQ(cluster.rank(0).find(CGX_COMPLETE_CALL, 1)->record.status, 0);
  }
}

TEST(LateRank, IsWarnedAboutByNameOnEveryMachineAndNotGivenUp) {
  World world({1, 1, 1});
  fill(world.cluster, world.tensors, 0);
  for (uint32_t r : {0u, 1u}) submit_all(world.cluster, world.tensors, r, 0);
  world.cluster.run_for(11 * kSecond);
  int warned = 0;
  for (const std::string& event : world.cluster.events()) {
    warned += event.find("for rank 2") != std::string::npos;
  }
  EXPECT_EQ(warned, 4) << "machines 0 and 1 at 5 s and 10 s";
  EXPECT_EQ(world.step_status(0, 0), StatusCode::kBUSY);
  submit_all(world.cluster, world.tensors, 2, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }, kSecond));
  EXPECT_EQ(world.step_status(0, 0), StatusCode::kOK);
  expect_reference(world.cluster, world.tensors, world.shape, 0);
}

TEST(LateRank, IsGivenUpAtTheCommunicatorsTimeOut) {
  World world({1, 1}, {.timeout_ms = 20'000});
  submit_all(world.cluster, world.tensors, 0, 0);
  world.cluster.run_for(19 * kSecond);
  EXPECT_EQ(world.step_status(0, 0), StatusCode::kBUSY);
  world.cluster.run_for(2 * kSecond);
  EXPECT_EQ(world.step_status(0, 0), StatusCode::kTIMED_OUT);
  EXPECT_NE(world.step_text(0, 0).find("rank 1"), std::string::npos);
}

TEST(StepDone, ThatDiffersBetweenMachinesNamesTheRanks) {
  World world({1, 1});
  run_step(world.cluster, world.tensors, 0);
  ASSERT_TRUE(world.cluster.done_step(0, 0, /*dropped=*/true).ok());
  submit_step(world.cluster, world.tensors, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, kSecond));
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kMISMATCH);
    EXPECT_NE(world.step_text(r, 1).find("dropped"), std::string::npos) << world.step_text(r, 1);
  }
}

TEST(Join, RefusesASecondRankWithTheSameNumber) {
  World world({1, 1});
  Rank intruder(4096);
  auto session = world.cluster.engine(1).open_session({.job = "job", .client = "again"}, intruder);
  ASSERT_TRUE(session.ok());
  world.cluster.create_as(1, *session);
  ASSERT_EQ(intruder.replies.count(Cluster::kCreate), 1u);
  EXPECT_EQ(intruder.replies[Cluster::kCreate].code, StatusCode::kALREADY_EXISTS);
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
}

TEST(Close, OfOneRankEndsTheOthersWaitWithItsName) {
  World world({2, 1});
  run_step(world.cluster, world.tensors, 0);
  world.cluster.close_communicator(1);
  submit_all(world.cluster, world.tensors, 0, 1);
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kCANCELLED);
}

}  // namespace
}  // namespace cgx::sim
