// Steps of several ranks on one daemon: results, order rules, absence, failure and redo.
#include <atomic>
#include <cmath>

#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Ne;

class StepsTest : public RanksTest {
 protected:
  // One whole step on one rank; homes hold `value` before.
  void run_step(Rank& rank, uint64_t step, float value) {
    for (uint32_t id : rank.ids) rank.home(id)[0] = value;
    ASSERT_OK(cgx_submit(rank.comm, step, rank.ids.data(), rank.ids.size()));
    ASSERT_OK(cgx_step_end(rank.comm, step));
    ASSERT_OK(cgx_wait(rank.comm, step, -1));
  }
};

TEST_F(StepsTest, SumsInRankOrderIntoEveryRanksHome) {
  open_ranks(3);
  add_tensors(2, 1000);
  each_rank([&](uint32_t i, Rank& rank) {
    for (uint32_t id : rank.ids) {
      for (int k = 0; k < 1000; ++k) rank.home(id)[k] = static_cast<float>(k) * 0.1f + i;
    }
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), rank.ids.size()));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
    for (int k = 0; k < 1000; ++k) {
      const float a = static_cast<float>(k) * 0.1f;
      EXPECT_EQ(rank.home(1)[k], ((a + 0.0f) + (a + 1.0f)) + (a + 2.0f));
    }
  });
}

TEST_F(StepsTest, TellsTheTimeOutThatBoundsWaits) {
  uint64_t timeout_ms = 0;
  open_ranks(1, 0, 1'234);
  ASSERT_OK(cgx_comm_timeout(ranks_[0].comm, &timeout_ms));
  EXPECT_EQ(timeout_ms, 1'234u);
  cgx_close(ranks_[0].session);
  open_ranks(1, 0, /*timeout_ms=*/0);  // a cgxd says half an hour, the fake daemon nothing
  ASSERT_OK(cgx_comm_timeout(ranks_[0].comm, &timeout_ms));
  EXPECT_EQ(timeout_ms, 1'800'000u);
}

TEST_F(StepsTest, ATimeOutThatSaysForEverReachesTheDaemonAsAYear) {
  open_ranks(1, 0, uint64_t{1} << 62);
  add_tensors(1, 8);
  if (!daemon_) return;
  EXPECT_EQ(daemon_->timeout_ms(), 365ull * 24 * 3600 * 1000);
}

TEST_F(StepsTest, RunsManyStepsInARowFromTheFirstNumber) {
  open_ranks(2, 5);
  add_tensors(20, 16);
  each_rank([&](uint32_t, Rank& rank) {
    for (uint64_t step = 5; step < 205; ++step) {
      for (uint32_t id : rank.ids) rank.home(id)[3] = static_cast<float>(step + id);
      for (uint32_t id : rank.ids) ASSERT_OK(cgx_submit(rank.comm, step, &id, 1));
      ASSERT_OK(cgx_step_end(rank.comm, step));
      ASSERT_OK(cgx_wait(rank.comm, step, -1));
      for (uint32_t id : rank.ids) {
        ASSERT_EQ(rank.home(id)[3], 2.0f * static_cast<float>(step + id));
      }
    }
  });
}

TEST_F(StepsTest, RefusesAGradientUnitThatIsNone) {
  open_ranks(1);
  add_tensors(1, 4);
  cgx_comm* const comm = ranks_[0].comm;
  for (double unit : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    EXPECT_EQ(cgx_set_gradient_unit(comm, unit), CGX_INVALID_ARGUMENT);
    EXPECT_THAT(cgx_last_error(), HasSubstr("gradient unit " + std::to_string(unit)));
  }
  ASSERT_OK(cgx_set_gradient_unit(comm, 64));
  run_step(ranks_[0], 0, 1.0f);
}

TEST_F(StepsTest, SubmitsMoreTensorsThanTheRingHolds) {
  open_ranks(1);
  add_tensors(6000, 1);
  run_step(ranks_[0], 0, 2.0f);
  run_step(ranks_[0], 1, 3.0f);
  EXPECT_EQ(ranks_[0].home(5999)[0], 3.0f);
}

TEST_F(StepsTest, SubmitThatWaitsForRoomEndsWithItsCommunicator) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(5000, 1);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), rank.ids.size()));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  std::atomic<bool> over{false};
  std::thread next([&] {
    EXPECT_EQ(cgx_submit(rank.comm, 1, rank.ids.data(), rank.ids.size()), CGX_CANCELLED);
    over = true;
  });
  while (daemon_->waiting() == 0 && !over) std::this_thread::yield();
  EXPECT_OK(cgx_comm_cancel(rank.comm));
  next.join();
}

TEST_F(StepsTest, ReadsAndWritesWhereInOutSays) {
  open_ranks(1);
  add_tensors(1, 8, CGX_AVG);
  Rank& rank = ranks_[0];
  float* in = arena_floats(rank, 8);
  float* out = arena_floats(rank, 8);
  for (int k = 0; k < 8; ++k) in[k] = static_cast<float>(k);
  rank.home(0)[7] = -1.0f;
  ASSERT_OK(submit_inout(rank, 0, in, out));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  EXPECT_EQ(out[7], 7.0f);
  EXPECT_EQ(rank.home(0)[7], -1.0f);
}

TEST_F(StepsTest, RefusesBuffersOutsideTheArenaMisalignedOrOverlapping) {
  open_ranks(1);
  add_tensors(1, 8);
  Rank& rank = ranks_[0];
  float* memory = arena_floats(rank, 64);
  float stack[8];
  EXPECT_EQ(submit_inout(rank, 0, stack, memory), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("input is not in the arena"));
  auto* bytes = reinterpret_cast<char*>(memory);
  EXPECT_EQ(submit_inout(rank, 0, bytes + 2, memory), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("aligned"));
  EXPECT_EQ(submit_inout(rank, 0, memory, memory + 4), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("overlap"));
  run_step(rank, 0, 1.0f);  // refused submits left no trace
}

TEST_F(StepsTest, RefusesBuffersThatDoNotHoldTheirTensor) {
  open_ranks(1);
  add_tensors(1, 8);
  Rank& rank = ranks_[0];
  float* small = arena_floats(rank, 4);
  float* large = arena_floats(rank, 8);
  EXPECT_EQ(submit_inout(rank, 0, large, small), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("tensor t0 of 8 fp32: the output needs 32 bytes and has "
                                          "16 to the end of its allocation of 16"));
  EXPECT_EQ(submit_inout(rank, 0, large + 1, large), CGX_INVALID_ARGUMENT);
  EXPECT_OK(submit_inout(rank, 0, large, large));
}

TEST_F(StepsTest, FreedBuffersOfAnOpenStepAreNotGivenOut) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(2, 8);
  Rank& rank = ranks_[0];
  float* in = arena_floats(rank, 8);
  float* out = arena_floats(rank, 8);
  in[7] = 3.0f;
  daemon_->hold(true);
  ASSERT_OK(submit_inout(rank, 0, in, out));
  ASSERT_OK(cgx_arena_free(rank.session, in));
  ASSERT_OK(cgx_arena_free(rank.session, out));
  for (int i = 0; i < 4; ++i) EXPECT_THAT(arena_floats(rank, 8), AllOf(Ne(in), Ne(out)));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  daemon_->hold(false);
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  EXPECT_EQ(out[7], 3.0f);
  EXPECT_EQ(arena_floats(rank, 8), in);
}

TEST_F(StepsTest, ClosedCommunicatorGivesBackTheMemoryOfItsOpenStep) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(2, 8);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 8);
  float* home = rank.home(1);
  daemon_->hold(true);
  ASSERT_OK(submit_inout(rank, 0, data, data));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  ASSERT_OK(cgx_comm_close(rank.comm));
  ASSERT_OK(cgx_arena_free(rank.session, data));
  EXPECT_THAT((std::vector{arena_floats(rank, 8), arena_floats(rank, 8), arena_floats(rank, 8)}),
              AllOf(Contains(data), Contains(home)));
}

TEST_F(StepsTest, DroppedStepStaysDroppedWhenItIsSaidAfterAFailureElsewhere) {
  open_ranks(2);
  add_tensors(1, 8);
  each_rank([&](uint32_t, Rank& rank) { run_step(rank, 0, 1.0f); });
  Rank &late = ranks_[0], &early = ranks_[1];
  ASSERT_OK(cgx_step_done(early.comm, 0, CGX_DROPPED));
  ASSERT_OK(cgx_submit(early.comm, 1, early.ids.data(), 1));
  EXPECT_EQ(cgx_submit(early.comm, 1, early.ids.data(), 1), CGX_STEP_ABANDONED);
  cgx_step_report report{.size = sizeof(report)};
  while (report.failed == 0) ASSERT_OK(cgx_step_info(early.comm, 1, &report));
  ASSERT_OK(cgx_step_done(late.comm, 0, CGX_DROPPED));  // the daemon has failed step 1 by now
  each_rank([&](uint32_t, Rank& rank) {
    // A daemon may let the late rank, which had not begun the step, go on without a redo.
    if (&rank == &late) {
      std::fill_n(rank.home(0), 8, 1.0f);
      cgx_submit(rank.comm, 1, rank.ids.data(), 1);
      if (cgx_step_end(rank.comm, 1) == CGX_OK && cgx_wait(rank.comm, 1, -1) == CGX_OK) {
        EXPECT_EQ(rank.home(0)[0], 2.0f);
        return;
      }
    }
    uint64_t step = 0;
    ASSERT_OK(cgx_step_redo(rank.comm, &step));
    EXPECT_EQ(step, 1u);
    run_step(rank, 1, 1.0f);
    EXPECT_EQ(rank.home(0)[0], 2.0f);
  });
  if (!daemon_) return;
  EXPECT_EQ(daemon_->dropped_steps(), 2u) << "the late rank's word was said again";
}

TEST_F(StepsTest, RefusesStepsOutOfOrderAtOnce) {
  open_ranks(1, 3);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  EXPECT_EQ(cgx_submit(rank.comm, 4, rank.ids.data(), 1), CGX_STEP_ORDER);
  EXPECT_THAT(cgx_last_error(), HasSubstr("step 4 is out of order; the next step is 3"));
  EXPECT_EQ(cgx_wait(rank.comm, 3, -1), CGX_STEP_ORDER);
  run_step(rank, 3, 1.0f);
  EXPECT_EQ(cgx_submit(rank.comm, 3, rank.ids.data(), 1), CGX_STEP_ORDER);
}

TEST_F(StepsTest, WaitInsideAnOpenStepIsAnImmediateError) {
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  size_t pending = 1;
  while (pending != 0) ASSERT_OK(cgx_test(rank.comm, 0, rank.ids.data(), 1, nullptr, &pending));
  EXPECT_EQ(cgx_wait(rank.comm, 0, -1), CGX_STEP_OPEN);  // finished or not
}

TEST_F(StepsTest, TensorsJoinAtTheNextCommit) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  EXPECT_EQ(cgx_step_end(ranks_[0].comm, 0), CGX_NOT_COMMITTED);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  const uint64_t shape = 4;
  cgx_tensor_options options{.size = sizeof(options)};
  options.name = "late";
  options.dims = 1;
  options.shape = &shape;
  uint32_t late = 0;
  ASSERT_OK(cgx_register(rank.comm, &options, &late));
  EXPECT_EQ(cgx_submit(rank.comm, 0, &late, 1), CGX_NOT_COMMITTED);
  EXPECT_THAT(cgx_last_error(), HasSubstr("late"));
  const uint32_t unknown = 7;
  EXPECT_EQ(cgx_submit(rank.comm, 0, &unknown, 1), CGX_NOT_FOUND);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
  EXPECT_EQ(cgx_commit(rank.comm), CGX_STEP_OPEN);
  daemon_->hold(true);
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  EXPECT_EQ(cgx_commit(rank.comm), CGX_STEP_OPEN);
  daemon_->hold(false);
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  ASSERT_OK(cgx_commit(rank.comm));
  ASSERT_OK(cgx_submit(rank.comm, 1, &late, 1));
}

TEST_F(StepsTest, AbsentRanksReceiveTheResultAtHome) {
  open_ranks(2);
  add_tensors(3, 4);
  each_rank([&](uint32_t i, Rank& rank) {
    for (uint32_t id : rank.ids) rank.home(id)[0] = 5.0f;
    const uint32_t both = 0, first_only = 1, nobody = 2;
    ASSERT_OK(cgx_submit(rank.comm, 0, &both, 1));
    if (i == 0) {
      ASSERT_OK(cgx_submit(rank.comm, 0, &first_only, 1));
    } else {
      ASSERT_OK(cgx_absent(rank.comm, 0, &first_only, 1));
      ASSERT_OK(cgx_absent(rank.comm, 0, &nobody, 1));
    }
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
    uint8_t states[3];
    size_t pending = 9;
    ASSERT_OK(cgx_test(rank.comm, 0, rank.ids.data(), 3, states, &pending));
    EXPECT_EQ(pending, 0u);
    EXPECT_EQ(states[0], CGX_TENSOR_RESULT);
    EXPECT_EQ(states[1], i == 0 ? CGX_TENSOR_RESULT : CGX_TENSOR_FILLED);
    EXPECT_EQ(states[2], CGX_TENSOR_ABSENT);
    EXPECT_EQ(rank.home(0)[0], 10.0f);
    EXPECT_EQ(rank.home(1)[0], 5.0f);
    EXPECT_EQ(rank.home(2)[0], 5.0f);
    cgx_step_report report{.size = sizeof(report)};
    ASSERT_OK(cgx_step_info(rank.comm, 0, &report));
    EXPECT_EQ(report.finished, 1u);
    EXPECT_GT(report.epoch, 0u);
    EXPECT_GT(report.policy_version, 0u);
    EXPECT_EQ(report.results + report.filled + report.absent, 3u);
  });
}

TEST_F(StepsTest, SubmittingAnAbsentTensorIsRefused) {
  open_ranks(1);
  add_tensors(1, 4);
  ASSERT_OK(cgx_absent(ranks_[0].comm, 0, ranks_[0].ids.data(), 1));
  ASSERT_OK(cgx_absent(ranks_[0].comm, 0, ranks_[0].ids.data(), 1));
  EXPECT_EQ(cgx_submit(ranks_[0].comm, 0, ranks_[0].ids.data(), 1), CGX_INVALID_ARGUMENT);
}

TEST_F(StepsTest, SecondSubmitAbandonsTheStepOnAllRanksAndARedoRepairsIt) {
  open_ranks(2);
  add_tensors(2, 4);
  each_rank([&](uint32_t i, Rank& rank) {
    for (uint32_t id : rank.ids) rank.home(id)[0] = 4.0f;
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 2));
    if (i == 1) {
      EXPECT_EQ(cgx_submit(rank.comm, 0, rank.ids.data(), 1), CGX_STEP_ABANDONED);
    } else {
      const cgx_status ended = cgx_step_end(rank.comm, 0);
      EXPECT_TRUE(ended == CGX_OK || ended == CGX_STEP_ABANDONED);
    }
    // What the other rank says may come only after the failure: then it counts for the redo.
    const cgx_status waited = cgx_wait(rank.comm, 0, -1);
    if (i == 1 || waited != CGX_OK) {
      EXPECT_EQ(waited, CGX_STEP_ABANDONED);
      uint64_t step = 99;
      ASSERT_OK(cgx_step_redo(rank.comm, &step));
      ASSERT_EQ(step, 0u);
      run_step(rank, 0, 4.0f);
    }
    EXPECT_EQ(rank.home(0)[0], 8.0f);
    run_step(rank, 1, 1.0f);
  });
}

TEST_F(StepsTest, FailedStepNamesItsCauseAndIsRedoneWithTheSameNumber) {
  NEEDS_FAKE_DAEMON();
  open_ranks(2);
  add_tensors(1, 4);
  each_rank([&](uint32_t, Rank& rank) { run_step(rank, 0, 1.0f); });
  daemon_->fail_next_step(StatusCode::kOP_STALLED);
  each_rank([&](uint32_t, Rank& rank) {
    ASSERT_OK(cgx_submit(rank.comm, 1, rank.ids.data(), 1));
    const cgx_status ended = cgx_step_end(rank.comm, 1);
    EXPECT_TRUE(ended == CGX_OK || ended == CGX_OP_STALLED);
    EXPECT_EQ(cgx_wait(rank.comm, 1, -1), CGX_OP_STALLED);
    EXPECT_THAT(cgx_last_error(), HasSubstr("OP_STALLED: asked to fail by the test"));
    EXPECT_NE(cgx_submit(rank.comm, 2, rank.ids.data(), 1), CGX_OK);
    EXPECT_NE(cgx_submit(rank.comm, 1, rank.ids.data(), 1), CGX_OK);
    uint64_t step = 0;
    ASSERT_OK(cgx_step_redo(rank.comm, &step));
    ASSERT_EQ(step, 1u);
    run_step(rank, 1, 3.0f);
    EXPECT_EQ(rank.home(0)[0], 6.0f);
    EXPECT_EQ(cgx_step_redo(rank.comm, &step), CGX_STEP_ORDER);
  });
}

TEST_F(StepsTest, AtMostTwoStepsAreUnfinished) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  for (uint64_t step : {0u, 1u}) {
    ASSERT_OK(cgx_submit(rank.comm, step, rank.ids.data(), 1));
    ASSERT_OK(cgx_step_end(rank.comm, step));
  }
  EXPECT_EQ(cgx_submit(rank.comm, 2, rank.ids.data(), 1), CGX_BUSY);
  EXPECT_EQ(cgx_wait(rank.comm, 1, 10), CGX_TIMED_OUT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("step 1 of communicator world"));
  daemon_->hold(false);
  ASSERT_OK(cgx_wait(rank.comm, 1, -1));
  ASSERT_OK(cgx_submit(rank.comm, 2, rank.ids.data(), 1));
}

TEST_F(StepsTest, StepDoneNeedsACompleteStep) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  add_tensors(1, 4);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  EXPECT_EQ(cgx_step_done(rank.comm, 0, CGX_DROPPED), CGX_BUSY);
  daemon_->hold(false);
  ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  EXPECT_EQ(cgx_step_done(rank.comm, 0, 2), CGX_INVALID_ARGUMENT);
  EXPECT_OK(cgx_step_done(rank.comm, 0, CGX_DROPPED));
  ASSERT_OK(cgx_submit(rank.comm, 1, rank.ids.data(), 1));
  EXPECT_EQ(cgx_step_done(rank.comm, 0, CGX_KEPT), CGX_STEP_ORDER);
}

TEST_F(StepsTest, EmptyTensorsTakePart) {
  open_ranks(2);
  add_tensors(2, 0);
  each_rank([&](uint32_t, Rank& rank) {
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 2));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  });
}

TEST_F(StepsTest, NamesWhatThereWasNoRoomFor) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1, 0, 100);
  add_tensors(5000, 1);
  Rank& rank = ranks_[0];
  daemon_->hold(true);
  ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), rank.ids.size()));
  ASSERT_OK(cgx_step_end(rank.comm, 0));
  EXPECT_EQ(cgx_submit(rank.comm, 1, rank.ids.data(), rank.ids.size()), CGX_TIMED_OUT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("room for 1024 more answers (8192 a session) of "
                                          "communicator world: the wait's time-out passed"));
  daemon_->hold(false);
}

TEST_F(StepsTest, LateRankIsWaitedFor) {
  open_ranks(2);
  add_tensors(1, 4);
  std::atomic<bool> first_waits{false};
  each_rank([&](uint32_t i, Rank& rank) {
    if (i == 1) {
      while (!first_waits) std::this_thread::yield();
    }
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    if (i == 0) {
      EXPECT_EQ(cgx_wait(rank.comm, 0, 0), CGX_TIMED_OUT);
      first_waits = true;
    }
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  });
}

}  // namespace
}  // namespace cgx::testing
