// Ranks that close or say goodbye at any moment (PROTOCOL 24): who waits for them is told at once,
// by name, on every machine; nobody's memory is touched any more.
#include <numeric>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

void expect_left(const std::string& text, uint32_t rank) {
  EXPECT_NE(text.find("left"), std::string::npos) << text;
  EXPECT_NE(text.find("rank " + std::to_string(rank)), std::string::npos) << text;
}

constexpr uint64_t kElements = 4000;  // of calls here

bool call_on(Cluster& cluster, uint32_t rank, uint64_t number) {
  return cluster.call(rank, number, DType::kF32, ReduceOp::kSum, kElements, 0).ok();
}

// Its ranks have their results, and the other machine lacks what they are made of.
TEST(LastFrames, AreWhatADaemonWaitsForBeforeItEnds) {
  SlowLink link{.from = 0, .to = 1, .slow_ns = kSecond};
  ClusterOptions options = link.options();
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kAllgather;
  options.sent_on_arrival = true;
  World world({1, 1}, options, /*raw=*/false);
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  link.slow = true;
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.run_for(kSecond / 10);
  ASSERT_EQ(world.step_status(0, 1), StatusCode::kOK);
  ASSERT_EQ(world.step_status(1, 1), StatusCode::kBUSY);
  world.cluster.close_communicator(0);
  world.cluster.run_for(kSecond / 10);
  const scheduler::Engine& engine = world.cluster.engine(0);
  const std::vector<std::string> owed = engine.undrained();
  ASSERT_EQ(owed.size(), 1u);
  EXPECT_NE(owed[0].find("the last frames for"), std::string::npos) << owed[0];
  world.cluster.run_for(3 * kSecond);
  EXPECT_EQ(world.step_status(1, 1), StatusCode::kOK) << world.step_text(1, 1);
  EXPECT_TRUE(engine.undrained().empty());
}

class Leaving : public ::testing::TestWithParam<std::vector<uint32_t>> {
 protected:
  uint32_t ranks() const { return std::accumulate(GetParam().begin(), GetParam().end(), 0u); }
};

TEST_P(Leaving, WithACallSubmittedEndsItOnAllRanksAndNobodyTouchesItsMemory) {
  World world(GetParam());
  const uint32_t gone = ranks() - 1;
  ASSERT_TRUE(call_on(world.cluster, gone, 0));
  world.cluster.say_goodbye(gone);
  for (uint32_t r = 0; r < gone; ++r) ASSERT_TRUE(call_on(world.cluster, r, 0));
  world.cluster.run_for(kSecond);
  for (uint32_t r = 0; r < gone; ++r) {
    EXPECT_EQ(world.call_status(r, 0), StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(world.call_text(r, 0), gone);
  }
  EXPECT_TRUE(world.cluster.rank(gone).released);
  EXPECT_FALSE(world.cluster.released_memory_touched());
}

TEST_P(Leaving, ClosingTheCommunicatorWithACallSubmittedEndsItEverywhere) {
  World world(GetParam());
  const uint32_t gone = ranks() - 1;
  ASSERT_TRUE(call_on(world.cluster, gone, 0));
  world.cluster.close_communicator(gone);
  ASSERT_EQ(world.cluster.rank(gone).replies.count(Cluster::kClose), 1u) << "nothing is under way";
  float* const buffer = world.cluster.rank(gone).at<float>(0);
  std::fill(buffer, buffer + kElements, 1000.0f);  // it is the rank's own again
  for (uint32_t r = 0; r < gone; ++r) ASSERT_TRUE(call_on(world.cluster, r, 0));
  world.cluster.run_for(kSecond);
  for (uint32_t r = 0; r < gone; ++r) {
    EXPECT_EQ(world.call_status(r, 0), StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(world.call_text(r, 0), gone);
  }
  EXPECT_EQ(std::count(buffer, buffer + kElements, 1000.0f), static_cast<int64_t>(kElements));
}

TEST_P(Leaving, BetweenTwoGroupsOfAStepEndsItOnAllRanks) {
  uint32_t lost = 0;
  for (uint32_t rounds = 0; rounds < 60; ++rounds) {
    ClusterOptions options{.policy = raw_policy(), .latency_ns = 1'000'000};
    options.policy.window = 1;
    options.policy.group_bytes = 1;  // a group per tensor
    World world(GetParam(), options, /*raw=*/false);
    const uint32_t gone = ranks() - 1;
    submit_step(world.cluster, world.tensors, 0);
    world.cluster.run_rounds(rounds);
    const bool complete = world.step_status(gone, 0) == StatusCode::kOK;
    world.cluster.say_goodbye(gone);
    world.cluster.run_for(kSecond);
    for (uint32_t r = 0; r < gone; ++r) {
      SCOPED_TRACE("after " + std::to_string(rounds) + " rounds, rank " + std::to_string(r));
      if (complete) {
        EXPECT_EQ(world.step_status(r, 0), StatusCode::kOK) << world.step_text(r, 0);
      } else if (world.step_status(r, 0) != StatusCode::kOK) {
        EXPECT_EQ(world.step_status(r, 0), StatusCode::kRANK_LOST);
        expect_left(world.step_text(r, 0), gone);
        ++lost;
      }
    }
    ASSERT_FALSE(world.cluster.released_memory_touched()) << "after " << rounds << " rounds";
  }
  EXPECT_GT(lost, 0u);
}

TEST_P(Leaving, WithAStepOpenTellsThatItWasUnfinished) {
  World world(GetParam());
  const uint32_t gone = ranks() - 1;
  fill(world.cluster, world.tensors, 0);
  for (uint32_t r = 0; r < gone; ++r) submit_all(world.cluster, world.tensors, r, 0);
  ASSERT_TRUE(world.cluster.submit(gone, 0, 0, world.tensors[0]).ok());
  world.cluster.run_for(kSecond / 10);
  world.cluster.say_goodbye(gone);
  world.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < gone; ++r) {
    EXPECT_EQ(world.step_status(r, 0), StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(world.step_text(r, 0), gone);
    EXPECT_NE(world.step_text(r, 0).find("something it had submitted was unfinished"),
              std::string::npos)
        << world.step_text(r, 0);
  }
  EXPECT_FALSE(world.cluster.released_memory_touched());
}

TEST_P(Leaving, TellsWhoWaitsInAStepAtOnce) {
  World world(GetParam());
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  const uint32_t gone = ranks() - 1;
  for (uint32_t r = 0; r < gone; ++r) submit_all(world.cluster, world.tensors, r, 1);
  world.cluster.run_for(kSecond / 10);
  world.cluster.close_communicator(gone);
  world.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < gone; ++r) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(world.step_text(r, 1), gone);
  }
}

TEST_P(Leaving, TellsWhoComesLater) {
  World world(GetParam());
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  const uint32_t gone = ranks() - 1;
  world.cluster.say_goodbye(gone);
  world.cluster.run_for(kSecond / 10);
  fill(world.cluster, world.tensors, 1);
  for (uint32_t r = 0; r < gone; ++r) {
    submit_all(world.cluster, world.tensors, r, 1);
    ASSERT_TRUE(call_on(world.cluster, r, 0));
  }
  world.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < gone; ++r) {
    for (const StatusCode code : {world.step_status(r, 1), world.call_status(r, 0)}) {
      EXPECT_TRUE(code == StatusCode::kRANK_LOST || code == StatusCode::kCANCELLED)
          << "rank " << r << ": " << status_name(code);
    }
    EXPECT_NE(world.step_text(r, 1).find("rank " + std::to_string(gone)), std::string::npos)
        << world.step_text(r, 1);
  }
}

TEST_P(Leaving, TellsWhoWaitsInACallOrACommitAtOnce) {
  const uint32_t gone = ranks() - 1;
  World calling(GetParam());
  for (uint32_t r = 0; r < gone; ++r) ASSERT_TRUE(call_on(calling.cluster, r, 0));
  calling.cluster.run_for(kSecond / 10);
  calling.cluster.close_communicator(gone);
  calling.cluster.run_for(kSecond / 10);
  World committing(GetParam());
  for (uint32_t r = 0; r < gone; ++r) {
    committing.cluster.rank(r).replies.erase(Cluster::kCommit);
    committing.cluster.request_commit(r, static_cast<uint32_t>(committing.tensors.size()));
  }
  committing.cluster.run_for(kSecond / 10);
  committing.cluster.close_communicator(gone);
  committing.cluster.run_for(kSecond / 10);
  for (uint32_t r = 0; r < gone; ++r) {
    EXPECT_EQ(calling.call_status(r, 0), StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(calling.call_text(r, 0), gone);
    const wire::Reply& reply = committing.cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, StatusCode::kRANK_LOST) << "rank " << r;
    expect_left(reply.message, gone);
  }
}

TEST_P(Leaving, WithNothingUnfinishedHarmsNobodyWhoIsFinishing) {
  for (const int64_t latency_ns : {1'000, 100'000, 30'000'000}) {
    World world(GetParam(), {.latency_ns = latency_ns});
    submit_step(world.cluster, world.tensors, 0);
    std::vector<bool> closed(ranks());
    uint32_t left = ranks();
    // Everybody goes the moment its own step is complete.
    ASSERT_TRUE(world.cluster.run_until(
        [&] {
          for (uint32_t r = 0; r < ranks(); ++r) {
            if (closed[r] || world.step_status(r, 0) == StatusCode::kBUSY) continue;
            EXPECT_EQ(world.step_status(r, 0), StatusCode::kOK) << world.step_text(r, 0);
            closed[r] = true;
            world.cluster.say_goodbye(r);
            --left;
          }
          return left == 0;
        },
        kSecond));
    world.cluster.run_for(kSecond);
    EXPECT_FALSE(world.cluster.released_memory_touched());
    for (uint32_t r = 0; r < ranks(); ++r) EXPECT_TRUE(world.cluster.rank(r).released);
  }
}

// A commit was answered here and is on its way there: to leave now takes nothing from anybody.
TEST(LeavingAfterACommit, HarmsNobodyWhoIsStillToHearOfIt) {
  SlowLink link{.from = 0, .to = 2, .slow_ns = 20'000'000};
  World world({1, 1, 1}, link.options());
  run_step(world.cluster, world.tensors, 0);
  link.slow = true;
  for (uint32_t r = 0; r < 3; ++r) {
    world.cluster.rank(r).replies.erase(Cluster::kCommit);
    world.cluster.request_commit(r, static_cast<uint32_t>(world.tensors.size()));
  }
  const auto heard = [&](uint32_t r) {
    return world.cluster.rank(r).replies.count(Cluster::kCommit) != 0;
  };
  ASSERT_TRUE(world.cluster.run_until([&] { return heard(0) && heard(1); }, kSecond));
  for (uint32_t r : {0u, 1u}) world.cluster.say_goodbye(r);
  ASSERT_TRUE(world.cluster.run_until([&] { return heard(2); }, kSecond));
  EXPECT_EQ(world.cluster.rank(2).replies[Cluster::kCommit].code, StatusCode::kOK)
      << world.cluster.rank(2).replies[Cluster::kCommit].message;
}

// The close comes over the socket and is read first where the daemon has not looked for a while.
TEST_P(Leaving, WithRecordsInTheRingThatTheCloseOvertookEndsNoSession) {
  World world(GetParam());
  const uint32_t gone = ranks() - 1;
  run_step(world.cluster, world.tensors, 0);
  world.cluster.close_communicator(gone);
  EXPECT_TRUE(world.cluster.done_step(gone, 0, /*dropped=*/false).ok());
  EXPECT_TRUE(world.cluster.submit(gone, 1, 0, world.tensors[0]).ok());
  EXPECT_TRUE(world.cluster.end_step(gone, 1).ok());
  EXPECT_TRUE(call_on(world.cluster, gone, 0));
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_END;
  record.comm = 8;
  const Status never_made = world.cluster.engine(world.cluster.rank(gone).machine)
                                .submit(world.cluster.rank(gone).session, record);
  EXPECT_EQ(never_made.code(), StatusCode::kPROTOCOL_ERROR);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Leaving,
                         ::testing::Values(std::vector<uint32_t>{2}, std::vector<uint32_t>{1, 1},
                                           std::vector<uint32_t>{1, 2},
                                           std::vector<uint32_t>{1, 1, 2}));

uint64_t plan_bytes_taken(Cluster& cluster, uint32_t machine) {
  const auto now_ns = static_cast<uint64_t>(cluster.now_ns());
  for (const scheduler::Share& share : cluster.engine(machine).snapshot(now_ns).shares) {
    if (share.name() == "limits.plan_bytes") return share.used();
  }
  return 0;
}

// Machine 1 takes nothing in from the fifth second on, and is given up after four more.
TEST(Closed, WhatThePeerHasNotTakenInCountsForItsHolderUntilTheLinkEnds) {
  using enum transport::Fault;
  ClusterOptions options{.policy = raw_policy()};
  options.faults.script = {{.fault = kCut, .from = 0, .to = 1, .at_ns = 5 * kSecond}};
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors = {{.name = "small", .elements = 64, .shape = {}}};  // gathered
  cluster.commit(tensors);
  cluster.run_for(5 * kSecond - cluster.now_ns() + 1);
  submit_step(cluster, tensors, 0);
  ASSERT_TRUE(cluster.run_until(
      [&] { return cluster.rank(0).find(CGX_COMPLETE_STEP, 0) != nullptr; }, kSecond));
  cluster.close_communicator(0);
  cluster.run_for(kSecond);
  EXPECT_TRUE(cluster.engine(0).communicators().empty());
  EXPECT_GT(plan_bytes_taken(cluster, 0), 0u);
  cluster.run_for(10 * kSecond);
  EXPECT_EQ(plan_bytes_taken(cluster, 0), 0u);
}

}  // namespace
}  // namespace cgx::sim
