// Single-tensor calls outside steps.
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

using ::testing::HasSubstr;

class CallsTest : public RanksTest {};

TEST_F(CallsTest, RunInOrderWithoutACommit) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    float* data = arena_floats(rank, 64);
    for (int call = 0; call < 20; ++call) {
      for (int k = 0; k < 64; ++k) data[k] = static_cast<float>(i + call + 1);
      ASSERT_OK(cgx_allreduce(rank.comm, data, data, 64, CGX_F32, CGX_AVG));
      EXPECT_EQ(data[63], (2.0f * static_cast<float>(call) + 3.0f) * 0.5f);
    }
  });
}

TEST_F(CallsTest, FourAreInFlightAndAFifthWaits) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 8);
  daemon_->hold(true);
  uint64_t call = 99;
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 8, CGX_F32, CGX_SUM, &call));
    EXPECT_EQ(call, i);
  }
  std::atomic<bool> fifth_done{false};
  std::thread fifth([&] {
    uint64_t number = 0;
    EXPECT_OK(cgx_allreduce_async(rank.comm, data, data, 8, CGX_F32, CGX_SUM, &number));
    EXPECT_EQ(number, 4u);
    fifth_done = true;
  });
  int done = 1;
  ASSERT_OK(cgx_test_call(rank.comm, 3, &done));
  EXPECT_EQ(done, 0);
  EXPECT_EQ(cgx_wait_call(rank.comm, 0, 20), CGX_TIMED_OUT);
  EXPECT_FALSE(fifth_done);
  daemon_->hold(false);
  fifth.join();
  EXPECT_OK(cgx_wait_call(rank.comm, 4, -1));
  ASSERT_OK(cgx_test_call(rank.comm, 3, &done));
  EXPECT_EQ(done, 1);
}

TEST_F(CallsTest, LegalInsideAnOpenStep) {
  open_ranks(2);
  add_tensors(1, 4);
  each_rank([&](uint32_t, Rank& rank) {
    float* data = arena_floats(rank, 4);
    data[0] = 1.5f;
    ASSERT_OK(cgx_submit(rank.comm, 0, rank.ids.data(), 1));
    ASSERT_OK(cgx_allreduce(rank.comm, data, data, 4, CGX_F32, CGX_SUM));
    EXPECT_EQ(data[0], 3.0f);
    ASSERT_OK(cgx_step_end(rank.comm, 0));
    ASSERT_OK(cgx_wait(rank.comm, 0, -1));
  });
}

TEST_F(CallsTest, DisagreementOnTheSizeIsANamedErrorAndLaterCallsWork) {
  open_ranks(2);
  each_rank([&](uint32_t i, Rank& rank) {
    float* data = arena_floats(rank, 16);
    EXPECT_EQ(cgx_allreduce(rank.comm, data, data, 8 + i, CGX_F32, CGX_SUM), CGX_MISMATCH);
    EXPECT_OK(cgx_allreduce(rank.comm, data, data, 8, CGX_F32, CGX_SUM));
  });
}

TEST_F(CallsTest, RefusesBadArgumentsBeforeTheDaemonSeesThem) {
  open_ranks(1);
  cgx_comm* comm = ranks_[0].comm;
  float* data = arena_floats(ranks_[0], 8);
  EXPECT_EQ(cgx_allreduce(comm, data, data, 8, 77, CGX_SUM), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("dtype 77"));
  EXPECT_EQ(cgx_allreduce(comm, data, data, 8, CGX_F32, 9), CGX_INVALID_ARGUMENT);
  EXPECT_EQ(cgx_allreduce(comm, data, data, 2, CGX_I32, CGX_AVG), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("avg is defined for floating types, not for int32"));
  EXPECT_EQ(cgx_allreduce(comm, data, data, UINT64_MAX / 2, CGX_F32, CGX_SUM),
            CGX_INVALID_ARGUMENT);
  EXPECT_EQ(cgx_allreduce(comm, data, data, 1 << 30, CGX_F32, CGX_SUM), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("cgx_allreduce of 1073741824 fp32: the input needs "
                                          "4294967296 bytes and has 32 to the end"));
  EXPECT_EQ(cgx_wait_call(comm, 0, -1), CGX_NOT_FOUND);
  EXPECT_OK(cgx_allreduce(comm, data, data, 8, CGX_F32, CGX_SUM));
  EXPECT_OK(cgx_allreduce(comm, data, data, 0, CGX_F32, CGX_SUM));
}

TEST_F(CallsTest, FreedMemoryOfAnUnfinishedCallIsNotGivenOut) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* in = arena_floats(rank, 64);
  float* out = arena_floats(rank, 64);
  in[63] = 5.0f;
  daemon_->hold(true);
  uint64_t call = 0;
  ASSERT_OK(cgx_allreduce_async(rank.comm, in, out, 64, CGX_F32, CGX_SUM, &call));
  EXPECT_EQ(cgx_wait_call(rank.comm, call, 0), CGX_TIMED_OUT);
  ASSERT_OK(cgx_arena_free(rank.session, in));
  ASSERT_OK(cgx_arena_free(rank.session, out));
  float* other = arena_floats(rank, 64);
  EXPECT_NE(other, in);
  EXPECT_NE(other, out);
  EXPECT_EQ(cgx_allreduce(rank.comm, in, in, 64, CGX_F32, CGX_SUM), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("was it freed?"));
  daemon_->hold(false);
  ASSERT_OK(cgx_wait_call(rank.comm, call, -1));
  EXPECT_EQ(out[63], 5.0f);
  EXPECT_EQ(arena_floats(rank, 64), in);
}

TEST_F(CallsTest, ClosedCommunicatorKeepsTheMemoryOfItsUnfinishedCalls) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 64);
  daemon_->hold(true);
  daemon_->keep_memory();
  uint64_t call = 0;
  ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 64, CGX_F32, CGX_SUM, &call));
  std::thread dying([&] {
    while (daemon_->communicators() != 0) std::this_thread::yield();  // the close has come
    daemon_->die();
  });
  ASSERT_OK(cgx_comm_close(rank.comm));
  dying.join();
  ASSERT_OK(cgx_arena_free(rank.session, data));
  for (int i = 0; i < 10; ++i) EXPECT_NE(arena_floats(rank, 64), data);
}

TEST_F(CallsTest, TheAnswerToTheCloseGivesTheMemoryBack) {
  NEEDS_FAKE_DAEMON();
  open_ranks(1);
  Rank& rank = ranks_[0];
  float* data = arena_floats(rank, 64);
  daemon_->hold(true);
  uint64_t call = 0;
  ASSERT_OK(cgx_allreduce_async(rank.comm, data, data, 64, CGX_F32, CGX_SUM, &call));
  ASSERT_OK(cgx_comm_close(rank.comm));
  ASSERT_OK(cgx_arena_free(rank.session, data));
  EXPECT_EQ(arena_floats(rank, 64), data);
}

}  // namespace
}  // namespace cgx::testing
