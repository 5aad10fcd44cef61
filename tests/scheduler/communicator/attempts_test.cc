#include "scheduler/communicator/attempts.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

const Status kWhy(StatusCode::kSTEP_ABANDONED, "rank 1 gave it up");

cgx_submit_record record_of(uint64_t step) {
  cgx_submit_record record{};
  record.step = step;
  return record;
}

TEST(Attempts, TakeRecordsOfTheCurrentOneOnly) {
  Attempts attempts(2);
  EXPECT_TRUE(attempts.check(0, 0, {}).ok());
  const Status wrong = attempts.check(0, 3, {});
  EXPECT_EQ(wrong.code(), StatusCode::kSTEP_ORDER);
  EXPECT_NE(wrong.message().find("attempt 3 of the step, the current one is 0"), std::string::npos);
}

TEST(Attempts, KeepARankThatWasToldOfAFailureOutUntilItAsksForTheNextOne) {
  Attempts attempts(2);
  attempts.tell({false, true});
  EXPECT_TRUE(attempts.check(0, 0, kWhy).ok());
  EXPECT_EQ(attempts.check(1, 0, kWhy).code(), StatusCode::kSTEP_ABANDONED);
  attempts.tell({false, false});  // another term: it still has not asked
  EXPECT_FALSE(attempts.check(1, 0, kWhy).ok());
  attempts.redo(1, 2);
  EXPECT_TRUE(attempts.check(1, 2, kWhy).ok());
  EXPECT_EQ(attempts.check(1, 0, kWhy).code(), StatusCode::kSTEP_ABANDONED) << "a straggler";
  EXPECT_TRUE(attempts.current(0, 0));
}

TEST(Attempts, AStepIsGivenUpForOneTerm) {
  Attempts attempts(1);
  EXPECT_FALSE(attempts.gave_up(0));
  attempts.give_up(4);
  EXPECT_TRUE(attempts.gave_up(4));
  EXPECT_FALSE(attempts.gave_up(5));
  EXPECT_TRUE(attempts.current(0, 0)) << "nobody here did it";
  attempts.begin_term();
  EXPECT_FALSE(attempts.gave_up(4));
  attempts.abandon(0, 6);
  EXPECT_TRUE(attempts.gave_up(6));
  EXPECT_FALSE(attempts.current(0, 0));
  attempts.begin_term();
  EXPECT_FALSE(attempts.current(0, 0)) << "it has to ask for another attempt";
}

TEST(Attempts, HoldWhatIsSaidInOrderOnceAndNotForEver) {
  Attempts attempts(2);
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(attempts.hold(step % 2, record_of(step)).ok());
  }
  const auto held = attempts.take_held();
  ASSERT_EQ(held.size(), 3u);
  for (uint64_t step = 0; step < 3; ++step) {
    EXPECT_EQ(held[step].local, step % 2);
    EXPECT_EQ(held[step].record.step, step);
  }
  EXPECT_TRUE(attempts.take_held().empty());
  Status status;
  uint64_t taken = 0;
  for (; status.ok() && taken < 1 << 20; ++taken) status = attempts.hold(0, record_of(0));
  EXPECT_EQ(status.code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_GT(taken, 2 * CGX_COMPLETION_CAPACITY);
}

TEST(Attempts, HoldWhatOneRankMaySayForEachOfThem) {
  constexpr uint32_t kRanks = 16;
  Attempts attempts(kRanks);
  for (int freeze = 0; freeze < 5; ++freeze) {
    for (uint32_t local = 0; local < kRanks; ++local) {
      for (uint32_t i = 0; i < CGX_COMPLETION_CAPACITY; ++i) {
        ASSERT_TRUE(attempts.hold(local, record_of(0)).ok()) << "rank " << local;
      }
    }
    EXPECT_EQ(attempts.take_held().size(), size_t{kRanks} * CGX_COMPLETION_CAPACITY);
  }
}

}  // namespace
}  // namespace cgx::scheduler
