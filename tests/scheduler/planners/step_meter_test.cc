#include "scheduler/planners/step_meter.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

Event arrival(uint32_t step, uint32_t tensor) {
  return {.step = step, .kind = EventKind::karrival, .a = tensor};
}
Event span(EventKind kind, uint32_t step, uint64_t ns) {
  return {.step = step, .kind = kind, .a = 4096, .b = ns};
}
Event completed(uint32_t step, uint64_t epoch) {
  return {.step = step, .kind = EventKind::kstep_completed, .b = epoch};
}

TEST(StepMeter, MeasuresAStepFromItsFirstGradientOn) {
  StepMeter meter;
  meter.begin(2);
  EXPECT_FALSE(meter.take(arrival(7, 1), 1000));
  EXPECT_FALSE(meter.take(arrival(7, 0), 1400));
  EXPECT_FALSE(meter.take(arrival(7, 0), 1600)) << "another rank's";
  EXPECT_FALSE(meter.take(span(EventKind::kencode, 7, 30), 1700));
  EXPECT_FALSE(meter.take(span(EventKind::kreduce, 7, 20), 1700));
  const auto sample = meter.take(completed(7, 3), 3000);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->step, 7u);
  EXPECT_EQ(sample->epoch, 3u);
  EXPECT_EQ(sample->step_ns, 2000);
  EXPECT_EQ(sample->period_ns, 0) << "no step before it is known";
  EXPECT_EQ(sample->arithmetic_ns, 50);
  EXPECT_EQ(sample->arrival_ns, (std::vector<float>{600, 0}));
}

TEST(StepMeter, KeepsTheStepOfAFastRankApart) {
  StepMeter meter;
  meter.begin(1);
  meter.take(arrival(1, 0), 100);
  meter.take(arrival(2, 0), 300);
  const auto one = meter.take(completed(1, 1), 400);
  const auto other = meter.take(completed(2, 1), 900);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->step_ns, 300);
  EXPECT_EQ(other->step_ns, 600);
  EXPECT_EQ(other->period_ns, 500);
}

TEST(StepMeter, KnowsNoPeriodAcrossAGap) {
  StepMeter meter;
  meter.begin(1);
  meter.take(completed(1, 1), 100);
  EXPECT_EQ(meter.take(completed(5, 1), 200)->period_ns, 0);
  meter.begin(1);
  EXPECT_EQ(meter.take(completed(6, 1), 300)->period_ns, 0) << "it has forgotten";
}

TEST(StepMeter, LeavesCallsAndUnknownTensorsOut) {
  StepMeter meter;
  meter.begin(1);
  Event of_call = span(EventKind::kencode, 1, 99);
  of_call.group = Event::kCall;
  meter.take(of_call, 100);
  meter.take(arrival(1, 9), 100);
  const auto sample = meter.take(completed(1, 1), 200);
  EXPECT_EQ(sample->arithmetic_ns, 0);
  EXPECT_EQ(sample->arrival_ns, std::vector<float>{0});
}

}  // namespace
}  // namespace cgx::scheduler
