#include "scheduler/planners/answer_meter.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

wire::FrameHeader frame(uint32_t part, uint8_t round, uint64_t step = 1, uint32_t group = 0) {
  wire::FrameHeader header;
  header.step = step;
  header.group = group;
  header.part = part;
  header.round = round;
  return header;
}

TEST(AnswerMeter, DividesTheWaitByTheBytesOfBothFrames) {
  AnswerMeter meter;
  meter.sent(1, frame(0, 1), 3'000, 10'000);
  meter.received(1, frame(0, 2), 1'000, 18'000);
  EXPECT_EQ(meter.take_ns_per_byte(), 2.0);
  EXPECT_EQ(meter.take_ns_per_byte(), 0.0) << "since it was asked last";
}

TEST(AnswerMeter, GoesByTheQuickestAnswer) {
  AnswerMeter meter;
  for (uint32_t part = 0; part < 3; ++part) meter.sent(1, frame(part, 1), 500, 0);
  meter.received(1, frame(1, 2), 500, 9'000);
  meter.received(1, frame(0, 2), 500, 4'000);
  meter.received(1, frame(2, 2), 500, 7'000);
  EXPECT_EQ(meter.take_ns_per_byte(), 4.0);
}

TEST(AnswerMeter, TakesNoOtherFrameForAnAnswer) {
  AnswerMeter meter;
  meter.sent(1, frame(0, 1), 500, 0);
  meter.received(2, frame(0, 2), 500, 10);        // of another machine
  meter.received(1, frame(0, 1), 500, 10);        // of the same round: it went out unasked
  meter.received(1, frame(3, 2), 500, 10);        // of another part
  meter.received(1, frame(0, 2, 2), 500, 10);     // of another step
  meter.received(1, frame(0, 2, 1, 1), 500, 10);  // of another group
  EXPECT_EQ(meter.take_ns_per_byte(), 0.0);
  meter.received(1, frame(0, 2), 500, 5'000);
  meter.received(1, frame(0, 2), 500, 5'001);  // it has been answered
  EXPECT_EQ(meter.take_ns_per_byte(), 5.0);
}

TEST(AnswerMeter, ForgetsWhatIsBeyondItsPlaces) {
  AnswerMeter meter;
  for (uint32_t part = 0; part < 10'000; ++part) meter.sent(1, frame(part, 1), 500, part);
  meter.received(1, frame(0, 2), 500, 10'000);
  EXPECT_EQ(meter.take_ns_per_byte(), 0.0);
  meter.received(1, frame(9'999, 2), 500, 11'999);
  EXPECT_EQ(meter.take_ns_per_byte(), 2.0);
}

}  // namespace
}  // namespace cgx::scheduler
