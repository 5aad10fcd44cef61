// Calls beside failures: a call has one outcome on all ranks (PROTOCOL 10), and its frames are
// never stale while it is open.
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

constexpr uint64_t kElements = 3000;
constexpr uint64_t kOffset = 512 * 1024;  // behind the tensors

bool call_on(Cluster& cluster, uint32_t rank, uint64_t number, uint64_t elements = kElements) {
  float* const data = cluster.rank(rank).at<float>(kOffset + number * 65'536);
  for (uint64_t i = 0; i < elements; ++i) data[i] = value(number, rank, 77, i);
  return cluster
      .call(rank, number, DType::kF32, ReduceOp::kSum, elements, kOffset + number * 65'536)
      .ok();
}

void expect_sum(Cluster& cluster, const std::vector<uint32_t>& shape, uint64_t number) {
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    const float* const data = cluster.rank(r).at<float>(kOffset + number * 65'536);
    for (uint64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(data[i], expected(shape, ReduceOp::kSum, number, 77, i))
          << "call " << number << " rank " << r;
    }
  }
}

// The call after it failed at once, and the word of that passes frames of this one.
TEST(Calls, CompleteThoughALaterOneFailed) {
  for (uint32_t slow = 0; slow < 2; ++slow) {
    ClusterOptions options;
    options.link_latency_ns = [slow](uint32_t from, uint32_t to) {
      return from == slow && to == 2 ? 5'000'000 : 20'000;
    };
    World world({1, 1, 1}, options);
    for (uint32_t r : {0u, 1u}) {
      ASSERT_TRUE(call_on(world.cluster, r, 0));
      ASSERT_TRUE(call_on(world.cluster, r, 1, r == 0 ? 10 : 11));
    }
    world.cluster.run_for(kSecond / 10);
    ASSERT_TRUE(call_on(world.cluster, 2, 0));
    ASSERT_TRUE(call_on(world.cluster, 2, 1, 10));
    for (uint32_t r : {0u, 1u, 2u}) ASSERT_TRUE(call_on(world.cluster, r, 2));
    world.cluster.run_for(kSecond);
    for (uint32_t r : {0u, 1u, 2u}) {
      EXPECT_EQ(world.call_status(r, 0), StatusCode::kOK) << "rank " << r;
      EXPECT_EQ(world.call_status(r, 1), StatusCode::kMISMATCH) << "rank " << r;
      EXPECT_EQ(world.call_status(r, 2), StatusCode::kOK) << "rank " << r;
    }
    ASSERT_NO_FATAL_FAILURE(expect_sum(world.cluster, world.shape, 0));
    ASSERT_NO_FATAL_FAILURE(expect_sum(world.cluster, world.shape, 2));
  }
}

// The small ones behind it end before it does, and a frame of one further on would be a fault of
// this machine's in the eyes of the other one.
TEST(Calls, AreAWindowAheadOfTheOldestByNumber) {
  ClusterOptions options;
  options.arena_bytes = 16u << 20;
  options.link_latency_ns = [](uint32_t, uint32_t) { return 1'000'000; };
  World world({1, 1}, options);
  const auto call = [&](uint32_t rank, uint64_t number) {
    return world.cluster.call(rank, number, DType::kF32, ReduceOp::kSum,
                              number == 0 ? 3'000'000 : 10, kOffset);
  };
  for (uint32_t r : {0u, 1u}) {
    for (uint64_t number : {0u, 1u, 2u, 3u}) ASSERT_TRUE(call(r, number).ok());
  }
  ASSERT_TRUE(world.cluster.run_until([&] {
    return world.call_status(0, 3) == StatusCode::kOK && world.call_status(1, 3) == StatusCode::kOK;
  }));
  ASSERT_EQ(world.call_status(0, 0), StatusCode::kBUSY) << "the large one goes on";
  ASSERT_TRUE(call(0, 4).ok());
  EXPECT_NE(world.call_text(0, 4).find("before call 0 has ended"), std::string::npos)
      << world.call_text(0, 4);
}

// One machine hears another late. The rest are a window of calls ahead of it, of which it has to
// hold all frames, and more of those that it has begun.
TEST(Calls, MayBeAWindowAheadOfAMachineThatHearsAnotherLate) {
  constexpr uint32_t kCalls = 40, kInFlight = 4;
  for (const uint32_t machines : {3u, 4u, 6u, 8u}) {
    SCOPED_TRACE(std::to_string(machines) + " machines");
    ClusterOptions options;
    options.link_latency_ns = [last = machines - 1](uint32_t from, uint32_t to) {
      return from == last && to == 0 ? 20'000'000 : 20'000;
    };
    options.ranks_per_machine.assign(machines, 1);
    Cluster cluster(options);  // without tensors, whose frames have room of their own
    cluster.create();
    const auto status = [&](uint32_t rank, uint64_t call) {
      const Rank::Completion* const ended = cluster.rank(rank).find(CGX_COMPLETE_CALL, call);
      return ended == nullptr ? StatusCode::kBUSY : static_cast<StatusCode>(ended->record.status);
    };
    std::vector<uint32_t> next(machines, 0);
    const auto go_on = [&] {
      bool all = true;
      for (uint32_t r = 0; r < machines; ++r) {
        while (next[r] < kCalls &&
               (next[r] < kInFlight || status(r, next[r] - kInFlight) == StatusCode::kOK)) {
          const uint64_t elements = next[r] / kInFlight % 2 == 0 ? 10 : 60'000;
          if (!cluster.call(r, next[r], DType::kF32, ReduceOp::kSum, elements, kOffset).ok()) break;
          ++next[r];
        }
        all = all && next[r] == kCalls;
      }
      return all;
    };
    ASSERT_TRUE(cluster.run_until(go_on, 20 * kSecond));
    cluster.run_for(kSecond);
    for (uint32_t r = 0; r < machines; ++r) {
      EXPECT_EQ(status(r, kCalls - 1), StatusCode::kOK) << "rank " << r;
    }
  }
}

// A rank abandons its pass while calls are in flight, at every moment of them. What one rank was
// told of a call, all are told; the one exception is said to be for ever, and names the call.
TEST(Calls, HaveOneOutcomeWhenAStepFailsBesideThem) {
  for (const std::vector<uint32_t>& shape :
       {std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{1, 1, 1}}) {
    const auto ranks = static_cast<uint32_t>(shape.size());
    for (uint32_t rounds = 0; rounds < 30; ++rounds) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(rounds) + " rounds");
      World world(shape);
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
      for (uint64_t call : {0u, 1u}) {
        for (uint32_t r = 0; r < ranks; ++r) ASSERT_TRUE(call_on(world.cluster, r, call));
      }
      world.cluster.run_rounds(rounds);
      world.abandon(ranks - 1, 1);
      world.cluster.run_for(kSecond / 10);
      const std::string state = world.cluster.engine(0)
                                    .snapshot(static_cast<uint64_t>(world.cluster.now_ns()))
                                    .communicators.at(0)
                                    .state;
      for (uint64_t call : {0u, 1u}) {
        for (uint32_t r = 1; r < ranks && state != "failed"; ++r) {
          EXPECT_EQ(world.call_status(r, call), world.call_status(0, call))
              << "call " << call << " rank " << r << ": " << world.call_text(r, call)
              << world.call_text(0, call);
        }
        for (uint32_t r = 0; r < ranks && state == "failed"; ++r) {
          if (world.call_status(r, call) == StatusCode::kOK) continue;
          EXPECT_EQ(world.call_status(r, call), StatusCode::kSTEP_LOST);
          EXPECT_NE(world.call_text(r, call).find("call"), std::string::npos)
              << world.call_text(r, call);
        }
      }
      if (state == "failed") continue;
      ASSERT_NO_FATAL_FAILURE(world.expect_redo(1));
      for (uint32_t r = 0; r < ranks; ++r) ASSERT_TRUE(call_on(world.cluster, r, 2));
      world.cluster.run_for(kSecond / 10);
      for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(world.call_status(r, 2), StatusCode::kOK);
      ASSERT_NO_FATAL_FAILURE(expect_sum(world.cluster, world.shape, 2));
    }
  }
}

// One machine's ranks make many calls while another's are far behind and a step fails.
TEST(Calls, OfAFastMachineAreTakenByASlowOneAfterAFailure) {
  for (uint32_t ahead = 1; ahead <= 4; ++ahead) {
    World world({1, 1});
    for (uint64_t call = 0; call < ahead; ++call) ASSERT_TRUE(call_on(world.cluster, 0, call));
    world.cluster.run_for(kSecond / 100);
    world.abandon(0, 0);
    world.cluster.run_for(kSecond / 100);
    for (uint32_t r : {0u, 1u}) world.cluster.request_redo(r);
    world.cluster.run_for(kSecond / 100);
    for (uint32_t r : {0u, 1u}) ASSERT_NO_FATAL_FAILURE(world.take_attempt(r));
    // Rank 1 has heard of none of them yet; rank 0 goes on to the next ones.
    for (uint64_t call = ahead; call < ahead + 4; ++call) {
      ASSERT_TRUE(call_on(world.cluster, 0, call));
    }
    world.cluster.run_for(kSecond / 100);
    for (uint64_t call = 0; call < ahead + 4; ++call) ASSERT_TRUE(call_on(world.cluster, 1, call));
    world.cluster.run_for(kSecond / 10);
    for (uint64_t call = 0; call < ahead + 4; ++call) {
      EXPECT_EQ(world.call_status(0, call), world.call_status(1, call))
          << "call " << call << ": " << world.call_text(0, call) << " | "
          << world.call_text(1, call);
      const bool failed = call < ahead && world.call_status(0, call) != StatusCode::kOK;
      EXPECT_EQ(world.call_status(0, call), failed ? StatusCode::kSTEP_ABANDONED : StatusCode::kOK)
          << "call " << call << ": " << world.call_text(0, call);
    }
  }
}

// All of the fast machine's calls have failed three times, and rank 1 has heard of none of them.
TEST(Calls, OfAFastMachineAreTakenHoweverManyFailedBefore) {
  constexpr uint64_t kFailed = 12;  // more than twice the window
  World world({1, 1}, {.arena_bytes = 2 << 20});
  for (uint64_t next = 0; next < kFailed;) {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(call_on(world.cluster, 0, next++));
    world.cluster.run_for(kSecond / 100);
    world.abandon(0, 0);
    world.cluster.run_for(kSecond / 100);
    ASSERT_NO_FATAL_FAILURE(world.ask_for_redo(0));
  }
  for (uint64_t call = kFailed; call < kFailed + 4; ++call) {
    ASSERT_TRUE(call_on(world.cluster, 0, call));
  }
  world.cluster.run_for(kSecond / 100);
  for (uint64_t call = 0; call < kFailed + 4; ++call) {
    ASSERT_TRUE(call_on(world.cluster, 1, call));
  }
  world.cluster.run_for(kSecond / 10);
  for (uint64_t call = 0; call < kFailed + 4; ++call) {
    EXPECT_EQ(world.call_status(1, call),
              call < kFailed ? StatusCode::kSTEP_ABANDONED : StatusCode::kOK)
        << "call " << call << ": " << world.call_text(1, call);
  }
  ASSERT_NO_FATAL_FAILURE(expect_sum(world.cluster, world.shape, kFailed));
}

// A link lost the frames that would complete it there: no term can make its outcomes one.
TEST(Calls, CompleteOnOneMachineOnlyAreLostByNameWhenAStepFails) {
  for (uint32_t without : {0u, 1u}) {
    World world({1, 1});
    world.cluster.let_through([without](uint32_t machine, const transport::Frame& frame) {
      return machine != without || !is_data(frame);
    });
    for (uint32_t r : {0u, 1u}) ASSERT_TRUE(call_on(world.cluster, r, 0));
    world.cluster.run_for(kSecond / 10);
    ASSERT_EQ(world.call_status(1 - without, 0), StatusCode::kOK);
    ASSERT_EQ(world.call_status(without, 0), StatusCode::kBUSY);
    world.abandon(0, 0);
    world.cluster.run_for(kSecond / 10);
    EXPECT_EQ(world.call_status(without, 0), StatusCode::kSTEP_LOST);
    EXPECT_NE(world.call_text(without, 0).find("call 0"), std::string::npos)
        << world.call_text(without, 0);
  }
}

// It was refused while the failure was being settled; the numbers go on all the same.
TEST(Calls, GoOnAfterOneWasRefusedDuringAFailure) {
  World world({1, 1});
  world.abandon(1, 0);
  ASSERT_TRUE(call_on(world.cluster, 1, 0));  // its machine waits for the new term
  for (uint32_t r : {0u, 1u}) world.cluster.request_redo(r);
  world.cluster.run_for(kSecond / 100);
  for (uint32_t r : {0u, 1u}) ASSERT_NO_FATAL_FAILURE(world.take_attempt(r));
  ASSERT_TRUE(call_on(world.cluster, 0, 0));
  for (uint32_t r : {0u, 1u}) ASSERT_TRUE(call_on(world.cluster, r, 1));
  world.cluster.run_for(kSecond / 10);
  EXPECT_EQ(world.call_status(0, 0), world.call_status(1, 0)) << world.call_text(0, 0);
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.call_status(r, 1), StatusCode::kOK) << world.call_text(r, 1);
  }
}

// One of a machine's ranks has not made the calls that failed for the other.
TEST(Calls, ThatFailedForOneRankTakeNoRoomFromItsNextOnes) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{2}, {2, 1}}) {
    World world(shape);
    uint64_t next = 0, oldest = 0;
    const auto submit_what_fits = [&](uint64_t end) {
      while (world.call_status(0, oldest) != StatusCode::kBUSY) ++oldest;
      while (next < end && next < oldest + 4) ASSERT_TRUE(call_on(world.cluster, 0, next++));
    };
    submit_what_fits(2);
    world.abandon(0, 0);
    world.cluster.run_for(kSecond / 100);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) world.cluster.request_redo(r);
    world.cluster.run_for(kSecond / 100);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) world.take_attempt(r);
    submit_what_fits(6);
    for (uint64_t call = 0; call < 6; ++call) {
      submit_what_fits(6);
      for (uint32_t r = 1; r < world.cluster.size(); ++r) {
        ASSERT_TRUE(call_on(world.cluster, r, call));
      }
      world.cluster.run_for(kSecond / 100);
    }
    for (uint64_t call = 0; call < 6; ++call) {
      for (uint32_t r = 0; r < world.cluster.size(); ++r) {
        EXPECT_EQ(world.call_status(r, call), world.call_status(0, call))
            << "call " << call << " rank " << r << ": " << world.call_text(r, call);
        if (call < 2) continue;
        EXPECT_EQ(world.call_status(r, call), StatusCode::kOK)
            << "call " << call << " rank " << r << ": " << world.call_text(r, call);
      }
    }
  }
}

// Two machines find the difference, each tells the other; the call before is still open.
TEST(Calls, GoOnAfterTwoMachinesFoundTheSameDifference) {
  World world({1, 1, 2});
  for (uint32_t r : {0u, 1u, 2u}) {
    ASSERT_TRUE(call_on(world.cluster, r, 0, 10));
    ASSERT_TRUE(call_on(world.cluster, r, 1, r == 1 ? 11 : 10));
  }
  world.cluster.run_for(kSecond / 100);
  for (uint64_t call : {0u, 1u}) ASSERT_TRUE(call_on(world.cluster, 3, call, 10));
  world.cluster.run_for(kSecond / 100);
  for (uint32_t r = 0; r < 4; ++r) {
    EXPECT_EQ(world.call_status(r, 0), StatusCode::kOK) << world.call_text(r, 0);
    EXPECT_EQ(world.call_status(r, 1), StatusCode::kMISMATCH) << world.call_text(r, 1);
  }
  for (uint64_t call = 2; call < 24; ++call) {
    for (uint32_t r = 0; r < 4; ++r) {
      ASSERT_TRUE(world.cluster.call(r, call, DType::kF32, ReduceOp::kSum, 100, kOffset).ok());
    }
    world.cluster.run_for(kSecond / 100);
    for (uint32_t r = 0; r < 4; ++r) {
      ASSERT_EQ(world.call_status(r, call), StatusCode::kOK)
          << "call " << call << " rank " << r << ": " << world.call_text(r, call);
    }
  }
}

}  // namespace
}  // namespace cgx::sim
