// The bookkeeping of steps and calls alone: no daemon, no memory.
#include <gtest/gtest.h>

#include "client/call_ledger.h"
#include "client/step_ledger.h"

namespace cgx::client {
namespace {

cgx_completion_record tensor_done(const Step& step, uint32_t tensor,
                                  uint8_t outcome = CGX_OUTCOME_RESULT) {
  return {.kind = CGX_COMPLETE_TENSOR,
          .outcome = outcome,
          .step = step.number,
          .tensor = tensor,
          .cookie = step.cookie};
}

cgx_completion_record step_done(const Step& step) {
  return {.kind = CGX_COMPLETE_STEP, .step = step.number, .epoch = 3, .cookie = step.cookie};
}

class StepLedgerTest : public ::testing::Test {
 protected:
  StepLedgerTest() { ledger_.resize(2); }

  Step& open(uint64_t number) {
    auto step = ledger_.open(number);
    EXPECT_TRUE(step.ok()) << step.status().to_string();
    return **step;
  }
  // Opens, ends and completes a step with both tensors present.
  void run(uint64_t number) {
    Step& step = open(number);
    for (uint32_t t = 0; t < 2; ++t) ledger_.mark(step, t, Mark::kSubmitted);
    ledger_.end(step);
    for (uint32_t t = 0; t < 2; ++t) EXPECT_EQ(ledger_.apply(tensor_done(step, t), {}), 1u);
    EXPECT_EQ(ledger_.apply(step_done(step), {}), 1u);
  }

  StepLedger ledger_{10};
};

TEST_F(StepLedgerTest, OpensOnlyTheNextStep) {
  EXPECT_EQ(ledger_.open(9).status().code(), StatusCode::kSTEP_ORDER);
  EXPECT_EQ(ledger_.open(11).status().code(), StatusCode::kSTEP_ORDER);
  EXPECT_EQ(open(10).number, 10u);
  EXPECT_EQ(ledger_.open(11).status().code(), StatusCode::kSTEP_ORDER);
}

TEST_F(StepLedgerTest, StampsAGradientUnitOnTheStepThatOpensNext) {
  EXPECT_EQ(open(10).gradient_unit, 1.0);
  ledger_.set_gradient_unit(64.0);
  EXPECT_EQ(open(10).gradient_unit, 1.0) << "it was open before";
  run(10);
  EXPECT_EQ(open(11).gradient_unit, 64.0);
  ledger_.set_gradient_unit(32.0);
  ledger_.restart(11, 1);
  EXPECT_EQ(open(11).gradient_unit, 32.0);
}

TEST_F(StepLedgerTest, RefusesStepsBeforeTheFirstCommit) {
  StepLedger fresh(0);
  EXPECT_EQ(fresh.open(0).status().code(), StatusCode::kNOT_COMMITTED);
}

TEST_F(StepLedgerTest, GivesBackEverySlotItReserved) {
  Step& step = open(10);
  ledger_.mark(step, 0, Mark::kSubmitted);
  EXPECT_EQ(ledger_.slots_at_end(step), 2u);
  ledger_.end(step);
  EXPECT_EQ(ledger_.reserved(), 3u);
  EXPECT_EQ(ledger_.apply(tensor_done(step, 0), {}), 1u);
  EXPECT_EQ(ledger_.apply(tensor_done(step, 1, CGX_OUTCOME_FILLED), {}), 1u);
  EXPECT_EQ(ledger_.apply(step_done(step), {}), 1u);
  EXPECT_EQ(ledger_.reserved(), 0u);
}

TEST_F(StepLedgerTest, ThirdStepWaitsForTheFirst) {
  for (uint64_t number : {10u, 11u}) ledger_.end(open(number));
  EXPECT_EQ(ledger_.open(12).status().code(), StatusCode::kBUSY);
}

TEST_F(StepLedgerTest, ForgetsStepsAfterFour) {
  for (uint64_t number = 10; number < 15; ++number) run(number);
  EXPECT_EQ(ledger_.find(10).status().code(), StatusCode::kNOT_FOUND);
  EXPECT_TRUE(ledger_.find(11).ok());
  EXPECT_EQ(ledger_.find(15).status().code(), StatusCode::kSTEP_ORDER);
}

TEST_F(StepLedgerTest, WaitingNeedsTheStepsEnd) {
  open(10);
  EXPECT_EQ(ledger_.awaited(10).status().code(), StatusCode::kSTEP_OPEN);
  ledger_.end(open(10));
  EXPECT_TRUE(ledger_.awaited(10).ok());
}

TEST_F(StepLedgerTest, IgnoresCompletionsOfAnEarlierAttempt) {
  Step& step = open(10);
  ledger_.mark(step, 0, Mark::kSubmitted);
  const cgx_completion_record stale = tensor_done(step, 0);
  ledger_.end(step);
  EXPECT_EQ(ledger_.restart(10, 1), 3u);
  Step& again = open(10);
  EXPECT_EQ(again.attempt, 1u);
  ledger_.mark(again, 0, Mark::kSubmitted);
  EXPECT_EQ(ledger_.apply(stale, {}), 0u);
  EXPECT_EQ(again.states[0], CGX_TENSOR_PENDING);
}

TEST_F(StepLedgerTest, AbandonedStepIsConfirmedOnlyByTheDaemon) {
  Step& step = open(10);
  ledger_.mark(step, 0, Mark::kSubmitted);
  ledger_.abandon(step, {StatusCode::kSTEP_ABANDONED, "again"});
  EXPECT_TRUE(ledger_.failed());
  EXPECT_FALSE(ledger_.confirmed());
  ledger_.apply(tensor_done(step, 0, CGX_OUTCOME_ERROR), {StatusCode::kSTEP_ABANDONED, "rank 1"});
  EXPECT_TRUE(ledger_.confirmed());
}

TEST_F(StepLedgerTest, KeepsTheAttemptForLaterSteps) {
  ledger_.end(open(10));
  ledger_.restart(10, 4);
  run(10);
  EXPECT_EQ(open(11).attempt, 4u);
}

TEST_F(StepLedgerTest, FailureStopsTheOpenStepAndTheNext) {
  Step& step = open(10);
  ledger_.mark(step, 0, Mark::kSubmitted);
  ledger_.apply(tensor_done(step, 0, CGX_OUTCOME_ERROR), {StatusCode::kRANK_LOST, "rank 1"});
  EXPECT_EQ(ledger_.open(10).status().code(), StatusCode::kRANK_LOST);
  EXPECT_TRUE(ledger_.awaited(10).ok());  // a wait would answer at once
  EXPECT_TRUE(step.stopped());
  EXPECT_TRUE(ledger_.failed());
}

TEST_F(StepLedgerTest, StepAfterAFailedOneNeedsARedo) {
  Step& step = open(10);
  ledger_.end(step);
  ledger_.apply(step_done(step), {StatusCode::kSTEP_FAILED, "why"});
  EXPECT_EQ(ledger_.open(11).status().code(), StatusCode::kSTEP_ORDER);
  EXPECT_EQ(ledger_.open(10).status().code(), StatusCode::kSTEP_ORDER);
  ledger_.restart(10, 1);
  EXPECT_TRUE(ledger_.open(10).ok());
  EXPECT_FALSE(ledger_.failed());
}

TEST_F(StepLedgerTest, StepWithoutAnOutcomeForATensorIsAnInternalError) {
  Step& step = open(10);
  ledger_.end(step);
  ledger_.apply(tensor_done(step, 1), {});
  ledger_.apply(step_done(step), {});
  EXPECT_EQ(step.failure.code(), StatusCode::kINTERNAL);
  EXPECT_EQ(step.states[0], CGX_TENSOR_FAILED);
}

TEST_F(StepLedgerTest, ClosingNeedsACompleteStepAndNoLaterOne) {
  Step& step = open(10);
  ledger_.end(step);
  EXPECT_EQ(ledger_.may_close(step, true).code(), StatusCode::kBUSY);
  for (uint32_t t = 0; t < 2; ++t) ledger_.apply(tensor_done(step, t), {});
  ledger_.apply(step_done(step), {});
  EXPECT_TRUE(ledger_.may_close(step, true).ok());
  open(11);
  EXPECT_EQ(ledger_.may_close(step, true).code(), StatusCode::kSTEP_ORDER);
}

TEST_F(StepLedgerTest, FateSaidAfterAFailureElsewhereCarriesTheAttemptOfNow) {
  run(10);
  ledger_.restart(11, 3);  // another rank abandoned step 11, which has not begun here
  Step& step = **ledger_.find(10);
  EXPECT_EQ(step.attempt, 0u);
  EXPECT_TRUE(ledger_.may_close(step, true).ok());
  EXPECT_EQ(ledger_.attempt(), 3u);
}

TEST_F(StepLedgerTest, RedoRemembersTheFateOfTheStepBefore) {
  run(10);
  Step& step = **ledger_.find(10);
  ledger_.close(step, true);
  open(11);
  ledger_.restart(11, 1);
  ASSERT_TRUE(ledger_.closing_before(11).has_value());
  EXPECT_TRUE(ledger_.closing_before(11)->dropped);
  EXPECT_TRUE(ledger_.may_close(step, true).ok());
  EXPECT_EQ(ledger_.may_close(step, false).message(), "step 11 has begun, which dropped step 10");
  run(11);
  EXPECT_FALSE(ledger_.closing_before(12).has_value());
}

TEST_F(StepLedgerTest, StepThatTheNextOneKeptIsNotDroppedAfterARedo) {
  run(10);
  Step& step = **ledger_.find(10);
  open(11);
  ledger_.restart(11, 1);
  EXPECT_FALSE(ledger_.closing_before(11).has_value());
  EXPECT_EQ(ledger_.may_close(step, true).message(), "step 11 has begun, which kept step 10");
}

TEST_F(StepLedgerTest, IgnoresTensorsOutsideTheTable) {
  Step& step = open(10);
  ledger_.mark(step, 0, Mark::kSubmitted);
  ledger_.apply(tensor_done(step, 4'000'000'000u), {});
  EXPECT_EQ(step.states[0], CGX_TENSOR_PENDING);
}

TEST(CallLedgerTest, WindowCountsFromTheOldestUnfinishedCall) {
  CallLedger calls;
  for (int i = 0; i < 4; ++i) calls.begin();
  EXPECT_FALSE(calls.room());
  EXPECT_EQ(calls.apply({.kind = CGX_COMPLETE_CALL, .step = 1}, {}), 1u);
  EXPECT_FALSE(calls.room());
  EXPECT_EQ(calls.apply({.kind = CGX_COMPLETE_CALL, .step = 0}, {}), 1u);
  EXPECT_TRUE(calls.room());
  EXPECT_EQ(calls.in_flight(), 2u);
}

TEST(CallLedgerTest, IgnoresUnknownAndRepeatedCompletions) {
  CallLedger calls;
  EXPECT_EQ(calls.apply({.step = 0}, {}), 0u);
  calls.begin();
  EXPECT_EQ(calls.apply({.step = 0}, {StatusCode::kMISMATCH, "sizes"}), 1u);
  EXPECT_EQ(calls.apply({.step = 0}, {}), 0u);
  EXPECT_EQ((*calls.find(0))->failure.code(), StatusCode::kMISMATCH);
}

TEST(CallLedgerTest, ForgetsCallsAfterSixtyFour) {
  CallLedger calls;
  for (uint64_t i = 0; i < 65; ++i) calls.apply({.step = calls.begin()}, {});
  EXPECT_EQ(calls.find(0).status().code(), StatusCode::kNOT_FOUND);
  EXPECT_TRUE(calls.find(1).ok());
  EXPECT_EQ(calls.find(65).status().code(), StatusCode::kNOT_FOUND);
}

}  // namespace
}  // namespace cgx::client
