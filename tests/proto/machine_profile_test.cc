#include "proto/wire/machine_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace cgx::wire {
namespace {

MachineProfile some_profile() {
  return {.operation_ns = 12'000,
          .segment_ns = 1'500,
          .frame_ns = 3'000,
          .copy_ns_per_byte = 0.054f,
          .wire_ns_per_byte = 0.14f,
          .trip_ns = 20'000,
          .share = 1,
          .codecs = {{{.codec = 0, .bucket = 512}, {0, 0.06f}, {0, 0.07f}},
                     {{.codec = 3, .bits = 4, .bucket = 512}, {10, 0.5f}, {20, 0.25f}}},
          .plans = {{.epoch = 3,
                     .step_ns = 5e6f,
                     .last_ns = 2e6f,
                     .between_ns = 1e6f,
                     .arithmetic_ns = 4e5f,
                     .busy_ns = 6e5f}}};
}

TEST(MachineProfile, ComesBackExactlyAndRejectsTruncation) {
  const std::vector<std::byte> bytes = encode_profile(some_profile());
  const Result<MachineProfile> read = decode_profile(bytes);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(encode_profile(*read), bytes);
  ASSERT_EQ(read->codecs.size(), 2u);
  EXPECT_EQ(read->codecs[1].spec, some_profile().codecs[1].spec);
  EXPECT_EQ(read->codecs[1].encode.ns_per_byte, 0.5f);
  EXPECT_EQ(read->codecs[1].decode.floor_ns, 20);
  ASSERT_EQ(read->plans.size(), 1u);
  EXPECT_EQ(read->plans[0].epoch, 3u);
  EXPECT_EQ(read->plans[0].busy_ns, 6e5f);
  EXPECT_EQ(read->trip_ns, 20'000);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_profile(std::span(bytes).first(length)).ok()) << length;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(decode_profile(longer).ok());
}

TEST(MachineProfile, RejectsWhatIsNoTime) {
  for (const float wrong : {std::nanf(""), INFINITY, -1.0f, 1e13f}) {
    MachineProfile of_codec = some_profile(), of_plan = some_profile(), of_way = some_profile();
    of_codec.codecs[1].decode.ns_per_byte = wrong;
    of_plan.plans[0].between_ns = wrong;
    of_way.trip_ns = wrong;
    for (const MachineProfile& profile : {of_codec, of_plan, of_way}) {
      EXPECT_EQ(decode_profile(encode_profile(profile)).status().code(),
                StatusCode::kPROTOCOL_ERROR)
          << wrong;
    }
  }
  MachineProfile share = some_profile(), amount = some_profile();
  share.share = 1.5f;
  amount.codecs[0].spec.amount = std::nanf("");
  EXPECT_FALSE(decode_profile(encode_profile(share)).ok());
  EXPECT_FALSE(decode_profile(encode_profile(amount)).ok());
}

TEST(MachineProfile, RejectsMoreThanThereMayBe) {
  MachineProfile full = some_profile();
  full.codecs.resize(MachineProfile::kCodecsMax);
  full.plans.resize(MachineProfile::kPlansMax);
  std::vector<std::byte> bytes = encode_profile(full);
  ASSERT_TRUE(decode_profile(bytes).ok());
  EXPECT_LE(bytes.size(), MachineProfile::kBytesMax);
  // One plan more, in a message that is as long as it says.
  constexpr size_t kPlanBytes = sizeof(uint64_t) + 5 * sizeof(float);
  const size_t at = bytes.size() - MachineProfile::kPlansMax * kPlanBytes - sizeof(uint32_t);
  const auto count = static_cast<uint32_t>(MachineProfile::kPlansMax + 1);
  std::memcpy(&bytes[at], &count, sizeof(count));
  bytes.resize(bytes.size() + kPlanBytes);
  EXPECT_EQ(decode_profile(bytes).status().code(), StatusCode::kPROTOCOL_ERROR);
}

TEST(MachineProfile, NamesAnotherVersion) {
  std::vector<std::byte> bytes = encode_profile(some_profile());
  bytes[0] = std::byte{2};
  const Status status = decode_profile(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kVERSION_MISMATCH);
  EXPECT_EQ(status.message(), "a profile of version 2, this daemon reads 1");
}

}  // namespace
}  // namespace cgx::wire
