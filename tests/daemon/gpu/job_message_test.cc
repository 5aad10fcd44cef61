#include "daemon/gpu/job_message.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cgx::daemon::gpu {
namespace {

template <class T>
void put(std::vector<std::byte>& message, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  message.insert(message.end(), bytes.begin(), bytes.end());
}

// A reduction of two slices: one adds the own ranks, the other two frames.
std::vector<std::byte> make_message() {
  std::vector<std::byte> message;
  put(message, JobHead{.kind = JobKind::kReduce, .stream = 3, .ticket = 7, .slices = 2});
  put(message, SliceHead{.elements = 64, .inputs = 2, .outputs = 1});
  for (uint64_t offset = 0; offset < 3; ++offset) {
    put(message, DevicePlace{.arena = 1, .word = 0, .offset = offset});
  }
  put(message, SliceHead{.elements = 32, .contributions = 2});
  for (uint64_t offset = 10; offset < 12; ++offset) {
    put(message, Staged{.block = 0, .length = 8, .offset = offset});
  }
  return message;
}

void change(std::vector<std::byte>& message, const JobHead& head) {
  std::memcpy(message.data(), &head, sizeof(head));
}

TEST(JobMessage, IsTakenApartAsItWasWritten) {
  const std::vector<std::byte> message = make_message();
  const auto job = parse_job(message);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->head.ticket, 7u);
  ASSERT_EQ(job->slices.size(), 2u);
  EXPECT_EQ(job->slices[0].inputs.size(), 2u);
  EXPECT_EQ(job->slices[0].outputs[0].offset, 2u);
  EXPECT_EQ(job->slices[1].contributions[1].offset, 11u);
}

TEST(JobMessage, OneThatEndsBeforeWhatItCountsIsNone) {
  const std::vector<std::byte> message = make_message();
  for (size_t bytes = 0; bytes < message.size(); bytes += 8) {
    EXPECT_EQ(parse_job(std::span(message).first(bytes)).status().code(),
              StatusCode::kPROTOCOL_ERROR)
        << bytes;
  }
  std::vector<std::byte> more = message;
  change(more, {.kind = JobKind::kReduce, .stream = 3, .ticket = 7, .slices = UINT32_MAX});
  EXPECT_FALSE(parse_job(more).ok());
}

TEST(JobMessage, HasStrengthsBeforeItsSlices) {
  std::vector<std::byte> message;
  put(message, JobHead{.kind = JobKind::kEncode, .slices = 1, .strengths = 2});
  for (const uint8_t bits : {8, 2}) put(message, CodecSpec{.codec = 3, .bits = bits});
  put(message, SliceHead{.elements = 64, .loss_pieces = 1, .loss_elements = 64});
  const auto job = parse_job(message);
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_EQ(job->strengths.size(), 2u);
  EXPECT_EQ(job->strengths[1].bits, 2);
  ASSERT_EQ(job->slices.size(), 1u);
  EXPECT_EQ(job->slices[0].head.loss_elements, 64u);
  change(message, {.kind = JobKind::kEncode, .slices = 1, .strengths = 3});
  EXPECT_FALSE(parse_job(message).ok()) << "no slice is left";
  message.resize(message.size() + 16 * sizeof(CodecSpec));
  change(message, {.kind = JobKind::kEncode, .strengths = scheduler::kStrengthsMax + 1});
  EXPECT_FALSE(parse_job(message).ok()) << "more than there may be";
  change(message, {.kind = JobKind::kEncode, .strengths = scheduler::kStrengthsMax});
  EXPECT_TRUE(parse_job(message).ok());
}

TEST(JobMessage, OfAnUnknownKindStreamOrTypeIsNone) {
  std::vector<std::byte> message = make_message();
  change(message, {.kind = static_cast<JobKind>(7), .stream = 3, .ticket = 7, .slices = 2});
  EXPECT_FALSE(parse_job(message).ok());
  change(message, {.kind = JobKind::kReduce, .stream = kStreams, .ticket = 7, .slices = 2});
  EXPECT_FALSE(parse_job(message).ok());
  change(message, {.kind = JobKind::kReduce, .stream = 3, .ticket = 7, .slices = 2});
  message[sizeof(JobHead) + offsetof(SliceHead, dtype)] = std::byte{200};
  EXPECT_FALSE(parse_job(message).ok());
}

}  // namespace
}  // namespace cgx::daemon::gpu
