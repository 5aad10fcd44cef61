#include "daemon/operators/tally.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

using scheduler::Event;
using scheduler::EventKind;

constexpr uint16_t kIndex = 4;

Event event(EventKind kind, uint64_t time_ns, uint32_t step = 1, uint16_t group = 0) {
  return {.time_ns = time_ns, .step = step, .kind = kind, .communicator = kIndex, .group = group};
}

Tally made() {
  Tally tally;
  tally.take(event(EventKind::kmade, 10));
  return tally;
}

TEST(Histogram, CountsUpToItsBounds) {
  Histogram histogram;
  histogram.add(10'000);
  histogram.add(10'001);
  histogram.add(1'000'000'000'000);
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_EQ(histogram.sum_ns(), 1'000'000'020'001u);
  EXPECT_EQ(histogram.up_to(0), 1u);
  EXPECT_EQ(histogram.up_to(1), 2u);
  EXPECT_EQ(histogram.up_to(Histogram::kBoundsNs.size() - 1), 2u);
  EXPECT_EQ(histogram.up_to(Histogram::kBoundsNs.size()), 3u);
}

TEST(Tally, AddsUpAStepsPhases) {
  Tally tally = made();
  tally.take(event(EventKind::karrival, 100));
  tally.take(event(EventKind::karrival, 150));
  tally.take(event(EventKind::kbegun, 300));
  Event encode = event(EventKind::kencode, 310);
  encode.b = 40;
  tally.take(encode);
  tally.take(event(EventKind::ksent, 360));
  tally.take(event(EventKind::ksent, 370));
  tally.take(event(EventKind::kreceived, 500));
  tally.take(event(EventKind::kreceived, 700));
  tally.take(event(EventKind::kstep_completed, 1000));
  const Tally::Job* const job = tally.find(kIndex, 10);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(job->phase(Phase::kwait).sum_ns(), 200u);
  EXPECT_EQ(job->phase(Phase::kencode).sum_ns(), 40u);
  EXPECT_EQ(job->phase(Phase::kwire).sum_ns(), 340u);
  EXPECT_EQ(job->phase(Phase::kexchange).sum_ns(), 700u);
  EXPECT_EQ(job->phase(Phase::kwire).count(), 1u);
  EXPECT_EQ(job->exchange_ns, 700u);
  EXPECT_EQ(job->steps, 0u);  // since when it ran is not known
  tally.take(event(EventKind::kstep_completed, 2500, 2));
  EXPECT_EQ(job->steps, 1u);
  EXPECT_EQ(job->step_ns, 1500u);
}

TEST(Tally, KnowsHowLateEachRankUsuallyIs) {
  Tally tally = made();
  for (uint32_t step = 1; step <= 50; ++step) {
    for (const uint16_t rank : {2, 3}) {
      Event ended = event(EventKind::kended, 1000 * step + (rank == 3 ? 400 : 0), step);
      ended.peer = rank;
      tally.take(ended);
    }
    tally.take(event(EventKind::kstep_completed, 1000 * step + 500, step));
  }
  const auto& late = tally.find(kIndex, 0)->late_ns;
  EXPECT_EQ(late.at(2), 0.0);
  EXPECT_NEAR(late.at(3), 400.0, 1.0);
}

TEST(Tally, MarksSwitchesAndFailures) {
  Tally tally = made();
  Event switched = event(EventKind::kswitched, 50);
  switched.b = 7;
  tally.take(switched);
  Event failed = event(EventKind::kfailed, 60);
  failed.a = static_cast<uint32_t>(StatusCode::kRANK_LOST);
  tally.take(failed);
  const auto& marks = tally.find(kIndex, 0)->marks;
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0].value, 7u);
  EXPECT_EQ(marks[1].value, static_cast<uint64_t>(StatusCode::kRANK_LOST));
}

TEST(Tally, TellsCommunicatorsOfOneIndexApart) {
  Tally tally = made();
  EXPECT_EQ(tally.find(kIndex, 11), nullptr);
  EXPECT_EQ(tally.find(kIndex + 1, 0), nullptr);
  tally.take(event(EventKind::kclosed, 20));
  EXPECT_EQ(tally.find(kIndex, 0), nullptr);
  tally.take(event(EventKind::kstep_completed, 30));  // of one whose beginning was forgotten
  EXPECT_EQ(tally.find(kIndex, 0), nullptr);
}

TEST(Tally, StaysSmallWhenStepsNeverEnd) {
  Tally tally = made();
  for (uint32_t step = 0; step < 100'000; ++step) {
    tally.take(event(EventKind::kbegun, step + 20, step));
    tally.take(event(EventKind::klate, step + 20, step));
  }
  EXPECT_LE(tally.find(kIndex, 0)->marks.size(), 64u);
}

}  // namespace
}  // namespace cgx::daemon
