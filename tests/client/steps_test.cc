// Steps and calls of several ranks on one daemon: results, order rules, absence, redo.
#include "tests/client/ranks.h"

namespace cgx::testing {
namespace {

class StepsTest : public RanksTest {};

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

TEST_F(StepsTest, RunsManyStepsInARow) {
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

TEST_F(StepsTest, CallsOutsideStepsRunInOrder) {
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

}  // namespace
}  // namespace cgx::testing
