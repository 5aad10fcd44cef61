// Bad days on a simulated cluster: everybody who waits gets a status that names the culprit, and
// what can be redone gives the right bits.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

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

// A cut nobody is told of: a link is given up where its silence was noticed, and not met again
// where another machine's word came first.
TEST(PeerLost, IsNotMetAgainOverTheSilentLink) {
  for (const uint32_t first : {0u, 1u, 2u}) {
    SCOPED_TRACE("rank " + std::to_string(first) + " comes first");
    World world({1, 1, 1});
    Cluster& cluster = world.cluster;
    run_step(cluster, world.tensors, 0);
    bool cut = true;
    cluster.let_through([&cut](uint32_t machine, const transport::Frame& frame) {
      wire::FrameHeader header;
      std::memcpy(&header, frame.header.data(), sizeof(header));
      return !cut || (machine != 2 && header.source != 2);
    });
    const auto to_the_lost = [&] {
      return std::pair(cluster.peer_of(0, 2), cluster.peer_of(1, 2));
    };
    const auto before = to_the_lost();
    submit_step(cluster, world.tensors, 1);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(1); }, 6 * kSecond));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world.step_status(rank, 1), StatusCode::kPEER_LOST) << "rank " << rank;
      cluster.close_communicator(rank);
    }
    cut = false;
    for (uint32_t i = 0; i < 3; ++i) {
      cluster.create_on((first + i) % 3, [](auto& message) { message.meeting = 2; });
    }
    cluster.run_for(kSecond / 2);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kCreate), 1u) << "rank " << rank;
      EXPECT_EQ(cluster.rank(rank).replies[Cluster::kCreate].code, StatusCode::kOK);
    }
    EXPECT_FALSE(to_the_lost().first == before.first) << "machine 0 met over the dead link";
    EXPECT_FALSE(to_the_lost().second == before.second) << "machine 1 met over the dead link";
  }
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
  ASSERT_TRUE(world.cluster.submit(0, 0, 0, world.tensors[0]).ok());
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  ASSERT_TRUE(world.cluster.submit(1, 0, 0, world.tensors[0]).ok());
  world.cluster.request_redo(1);
  world.cluster.run_for(kSecond / 100);
  world.cluster.rank(1).completions.clear();
  world.take_attempt(1);
  fill(world.cluster, world.tensors, 0);
  submit_all(world.cluster, world.tensors, 1, 0);
  for (uint32_t t = 1; t < world.tensors.size(); ++t) {  // sent before rank 0 heard of the failure
    ASSERT_TRUE(world.cluster.submit(0, 0, t, world.tensors[t]).ok());
  }
  world.cluster.request_redo(0);
  world.cluster.run_for(kSecond / 100);
  world.take_attempt(0);
  const uint32_t attempt = std::exchange(world.cluster.rank(0).attempt, 0);
  ASSERT_TRUE(world.cluster.submit(0, 0, 1, world.tensors[1]).ok());  // read after it asked to redo
  world.cluster.rank(0).attempt = attempt;
  world.cluster.rank(0).completions.clear();
  submit_all(world.cluster, world.tensors, 0, 0);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(0); }));
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(world.step_status(r, 0), StatusCode::kOK);
    EXPECT_EQ(world.cluster.rank(r).find(CGX_COMPLETE_STEP, 0)->record.attempt, attempt);
  }
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

// Residuals were kept here and dropped there, so that a redo would end in the same way.
TEST(StepDone, ThatDiffersBetweenMachinesNamesTheRanksAndEndsTheCommunicator) {
  World world({1, 1});
  run_step(world.cluster, world.tensors, 0);
  ASSERT_TRUE(world.cluster.done_step(0, 0, /*dropped=*/true).ok());
  submit_step(world.cluster, world.tensors, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, kSecond));
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kMISMATCH);
    for (const char* const part : {"rank 0", "dropped", "rank 1"}) {
      EXPECT_NE(world.step_text(r, 1).find(part), std::string::npos) << world.step_text(r, 1);
    }
  }
  for (uint32_t r : {0u, 1u}) world.cluster.request_redo(r);
  world.cluster.run_for(kSecond);
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.cluster.rank(r).replies[Cluster::kRedo].code, StatusCode::kMISMATCH);
  }
}

TEST(StepDone, ThatDiffersBetweenRanksOfAMachineNamesWhoKeptIt) {
  World world({2, 1});
  run_step(world.cluster, world.tensors, 0);
  for (uint32_t r : {0u, 2u}) {
    ASSERT_TRUE(world.cluster.done_step(r, 0, /*dropped=*/true).ok());
  }
  submit_step(world.cluster, world.tensors, 1);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(1); }, kSecond));
  for (uint32_t r = 0; r < world.cluster.size(); ++r) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kMISMATCH);
    EXPECT_NE(world.step_text(r, 1).find("rank 1 kept step 0"), std::string::npos)
        << world.step_text(r, 1);
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
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kRANK_LOST);
  EXPECT_NE(world.step_text(0, 1).find("rank 1 left"), std::string::npos) << world.step_text(0, 1);
}

TEST(LateRank, IsWarnedAboutAndGivenUpByOneThatIsAStepAhead) {
  World world({1, 1}, {.timeout_ms = 20'000});
  fill(world.cluster, world.tensors, 0);
  for (uint64_t step : {0u, 1u}) submit_all(world.cluster, world.tensors, 0, step);
  submit_all(world.cluster, world.tensors, 1, 0);
  world.cluster.run_for(kSecond);
  ASSERT_EQ(world.step_status(0, 0), StatusCode::kOK);
  world.cluster.run_for(18 * kSecond);
  const auto& events = world.cluster.events();
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const std::string& event) {
    return event.find("for rank 1") != std::string::npos;
  }));
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kBUSY);
  world.cluster.run_for(3 * kSecond);
  EXPECT_EQ(world.step_status(0, 1), StatusCode::kTIMED_OUT);
  EXPECT_NE(world.step_text(0, 1).find("rank 1"), std::string::npos) << world.step_text(0, 1);
}

// The word for the new term reaches one machine late; meanwhile another rank fails again.
TEST(Failing, AgainBeforeAllHeardOfTheNewTermIsOnlyAFailure) {
  SlowLink link{.from = 0, .to = 2, .slow_ns = 50'000'000};
  World world({1, 1, 1}, link.options());
  run_step(world.cluster, world.tensors, 0);
  link.slow = true;
  world.abandon(1, 1);
  world.cluster.request_redo(1);
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.cluster.rank(1).replies.count(Cluster::kRedo) != 0; }, kSecond));
  ASSERT_NO_FATAL_FAILURE(world.take_attempt(1));
  world.abandon(1, 1);
  world.cluster.run_for(10 * kSecond);
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
}

// A rank gives its step up while its GPU is far behind: nobody waits for that to do the step again.
TEST(Failing, WaitsForNoGradientsThatAreFarBehind) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {1, 1}, {1, 2, 1}}) {
    SCOPED_TRACE(std::to_string(shape.size()) + " machines");
    bool behind = false;
    ClusterOptions options;
    options.arena_bytes = 16u << 20;
    options.site = [&](uint32_t) {
      return SlowSiteOptions{.takes_ns = [&](const auto&, const auto&) -> int64_t {
                               return behind ? 20 * kSecond : 1'000;
                             },
                             .waits_for_ranks = true};
    };
    World world(shape, options);
    run_step(world.cluster, world.tensors, 0);
    behind = true;
    fill(world.cluster, world.tensors, 1);
    for (uint32_t r = 0; r + 1 < world.cluster.size(); ++r) {
      submit_all(world.cluster, world.tensors, r, 1);
    }
    const uint32_t last = world.cluster.size() - 1;
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      ASSERT_TRUE(world.cluster.submit(last, 1, t, world.tensors[t]).ok());
    }
    world.cluster.run_for(kSecond / 10);
    for (uint32_t r = 0; r <= last; ++r) {  // of many parts, which are asked for one by one
      ASSERT_TRUE(
          world.cluster
              .call(r, 0, DType::kF32, ReduceOp::kSum, 3'000'000, world.tensors.back().offset + 64)
              .ok());
    }
    ASSERT_TRUE(world.cluster.submit(last, 1, 0, world.tensors[0]).ok());
    ASSERT_TRUE(world.cluster.run_until(
        [&] { return world.step_status(0, 1) != StatusCode::kBUSY; }, kSecond));
    EXPECT_EQ(world.step_status(0, 1), StatusCode::kSTEP_ABANDONED) << world.step_text(0, 1);
    behind = false;
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
  }
}

// A step is skipped (its residual with it) by a rank that has not heard yet that the next one
// failed elsewhere.
TEST(StepDone, DroppedIsHeardThoughTheNextStepHasFailedElsewhere) {
  const auto trained = [](bool failing) {
    ClusterOptions options;
    options.policy.default_codec = {.codec = 3, .bits = 3, .flags = CodecSpec::kFeedback};
    options.policy.default_codec.bucket = 512;
    World world({1, 1}, options, /*raw=*/false);
    run_step(world.cluster, world.tensors, 0);
    EXPECT_TRUE(world.cluster.done_step(1, 0, /*dropped=*/true).ok());
    if (failing) {
      world.abandon(1, 1);
      world.cluster.run_for(kSecond / 100);
    }
    EXPECT_TRUE(world.cluster.done_step(0, 0, /*dropped=*/true).ok());
    if (failing) world.ask_for_redo(1);
    run_step(world.cluster, world.tensors, 1);
    const float* const data = world.cluster.rank(0).at<float>(0);
    return std::vector<float>(data, data + world.tensors.back().offset / sizeof(float));
  };
  const std::vector<float> failed = trained(true);
  EXPECT_EQ(failed, trained(false));
}

TEST(StepDone, DroppedForgetsTheResidualsOfTheStep) {
  const auto trained = [](bool stepped, bool dropped) {
    ClusterOptions options;
    options.policy.default_codec = {.codec = 3, .bits = 3, .flags = CodecSpec::kFeedback};
    options.policy.default_codec.bucket = 512;
    options.first_step = stepped ? 0 : 1;
    World world({2, 1}, options, /*raw=*/false);
    if (stepped) run_step(world.cluster, world.tensors, 0);
    for (uint32_t r = 0; stepped && r < world.cluster.size(); ++r) {
      EXPECT_TRUE(world.cluster.done_step(r, 0, dropped).ok());
    }
    run_step(world.cluster, world.tensors, 1);
    const float* const data = world.cluster.rank(0).at<float>(0);
    return std::vector<float>(data, data + world.tensors.back().offset / sizeof(float));
  };
  const std::vector<float> untouched = trained(false, false);
  EXPECT_EQ(trained(true, true), untouched);
  EXPECT_NE(trained(true, false), untouched);
}

// One machine is in the new term already when a rank of another dies, which is still in the old
// one.
TEST(RankLost, IsToldAcrossTerms) {
  SlowLink link{.from = 0, .to = 2, .slow_ns = 300'000'000};
  World world({1, 1, 1}, link.options());
  run_step(world.cluster, world.tensors, 0);
  link.slow = true;
  world.abandon(1, 1);
  for (uint32_t r : {0u, 1u}) world.cluster.request_redo(r);
  ASSERT_TRUE(world.cluster.run_until(
      [&] { return world.cluster.rank(1).replies.count(Cluster::kRedo) != 0; }, kSecond));
  for (uint32_t r : {0u, 1u}) ASSERT_NO_FATAL_FAILURE(world.take_attempt(r));
  for (uint32_t r : {0u, 1u}) world.cluster.rank(r).completions.clear();
  world.cluster.kill_rank(2);
  for (uint32_t r : {0u, 1u}) submit_all(world.cluster, world.tensors, r, 1);
  world.cluster.run_for(kSecond);
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kRANK_LOST) << world.step_text(r, 1);
    EXPECT_NE(world.step_text(r, 1).find("rank 2"), std::string::npos) << world.step_text(r, 1);
  }
}

// The rank is one step ahead: what it gives up is not the step whose results are on their way.
TEST(Abandoned, InTheNextStepLosesNothingOfTheOneBefore) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{1, 1}, {1, 1, 1}}) {
    for (int64_t wait_us = 0; wait_us < 200; wait_us += 4) {
      SCOPED_TRACE(std::to_string(wait_us) + " us");
      World world(shape);
      run_step(world.cluster, world.tensors, 0);
      submit_step(world.cluster, world.tensors, 1);
      world.cluster.run_for(wait_us * 1000);
      world.abandon(world.cluster.size() - 1, 2);
      world.cluster.run_for(kSecond);
      for (uint32_t r = 0; r < world.cluster.size(); ++r) {
        const StatusCode code = world.step_status(r, 1);
        ASSERT_TRUE(code == StatusCode::kOK || code == StatusCode::kSTEP_ABANDONED)
            << world.step_text(r, 1);
      }
    }
  }
}

// Every tensor's result was there, but no rank had ended the step.
TEST(Abandoned, AfterAllItsResultsCameIsRedone) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{1}, {2}, {1, 1}, {2, 1}}) {
    World world(shape);
    run_step(world.cluster, world.tensors, 0);
    fill(world.cluster, world.tensors, 1);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      for (uint32_t t = 0; t < world.tensors.size(); ++t) {
        ASSERT_TRUE(world.cluster.submit(r, 1, t, world.tensors[t]).ok());
      }
    }
    world.cluster.run_for(kSecond / 10);
    ASSERT_TRUE(world.cluster.submit(0, 1, 0, world.tensors[0]).ok());
    world.cluster.run_for(kSecond / 10);
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 2));
  }
}

// Machine 2 completes step 1 and fails step 2; the end of step 1 is still on its way to machine 0.
TEST(Failing, BesideAStepThatSomeHaveCompletedLosesNoStep) {
  ClusterOptions options;
  options.link_latency_ns = [](uint32_t from, uint32_t to) {
    if (from == 2 && to == 1) return 3'000'000;  // so machine 1 reduces late
    return from == 1 && to == 0 ? 5'000'000 : 20'000;
  };
  World world({1, 1, 2}, options);
  run_step(world.cluster, world.tensors, 0);
  submit_step(world.cluster, world.tensors, 1);
  world.cluster.rank(3).gradient_unit = 2.0;  // its neighbour says 1: refused when step 2 starts
  for (uint32_t r : {2u, 3u}) submit_all(world.cluster, world.tensors, r, 2);
  world.cluster.run_for(kSecond / 10);
  for (uint32_t r : {2u, 3u}) EXPECT_EQ(world.step_status(r, 2), StatusCode::kMISMATCH);
  for (uint32_t r = 0; r < 4; ++r) {
    EXPECT_EQ(world.step_status(r, 1), StatusCode::kOK) << world.step_text(r, 1);
  }
}

// Another rank has completed it: it cannot be done again, and nobody is left to try for ever.
TEST(Abandoned, AfterAnotherRankCompletedItIsLost) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{1, 1}, {1, 2, 1}}) {
    World world(shape);
    const uint32_t last = world.cluster.size() - 1;
    run_step(world.cluster, world.tensors, 0);
    fill(world.cluster, world.tensors, 1);
    for (uint32_t r = 0; r < last; ++r) submit_all(world.cluster, world.tensors, r, 1);
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      ASSERT_TRUE(world.cluster.submit(last, 1, t, world.tensors[t]).ok());
    }
    ASSERT_TRUE(world.cluster.run_until([&] { return world.step_status(0, 1) == StatusCode::kOK; },
                                        kSecond));
    ASSERT_TRUE(world.cluster.submit(last, 1, 0, world.tensors[0]).ok());
    world.cluster.request_redo(last);
    world.cluster.run_for(kSecond);
    ASSERT_EQ(world.cluster.rank(last).replies.count(Cluster::kRedo), 1u);
    const wire::Reply& reply = world.cluster.rank(last).replies[Cluster::kRedo];
    EXPECT_EQ(reply.code, StatusCode::kSTEP_LOST) << reply.message;
    submit_all(world.cluster, world.tensors, 0, 2);
    world.cluster.run_for(kSecond);
    EXPECT_EQ(world.step_status(0, 2), StatusCode::kSTEP_LOST) << world.step_text(0, 2);
  }
}

}  // namespace
}  // namespace cgx::sim
