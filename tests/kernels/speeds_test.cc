#include "kernels/speeds.h"

#include <gtest/gtest.h>
#include <time.h>

#include <vector>

#include "kernels/cold_memory.h"

namespace cgx::kernels {
namespace {

uint64_t thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Each look at it is a millisecond later.
uint64_t looks = 0;
uint64_t millisecond_a_look() {
  return 1'000'000 * ++looks;
}

std::vector<CodecSpec> some_codecs() {
  std::vector<CodecSpec> specs;
  for (const char* text : {"fp32", "maxmin:8", "maxmin:4,stochastic", "efsign", "topk:0.01"}) {
    specs.push_back(*parse_codec_spec(text));
  }
  return specs;
}

TEST(Speeds, ComeInOrderAsManyAsTheBudgetAllows) {
  if (!flushes()) GTEST_SKIP() << "this processor forgets no line of its caches";
  const std::vector<CodecSpec> specs = some_codecs();
  const std::vector<CodecSpeed> speeds = measure_speeds(best_lane(), specs, thread_ns);
  ASSERT_GT(speeds.size(), 0u);
  for (size_t i = 0; i < speeds.size(); ++i) {
    EXPECT_EQ(speeds[i].spec, specs[i]);
    EXPECT_GT(speeds[i].encode_ns_per_byte, 0) << to_string(specs[i]);
    EXPECT_GT(speeds[i].decode_ns_per_byte, 0) << to_string(specs[i]);
  }
}

TEST(Speeds, EndWithTheBudget) {
  if (!flushes()) GTEST_SKIP() << "this processor forgets no line of its caches";
  looks = 0;
  const std::vector<CodecSpeed> speeds =
      measure_speeds(best_lane(), some_codecs(), millisecond_a_look);
  ASSERT_EQ(speeds.size(), 1u) << "it takes twelve looks";
  constexpr double kOfLook = 1e6 / (128 * 1024);
  EXPECT_DOUBLE_EQ(speeds[0].encode_ns_per_byte, kOfLook);
  EXPECT_DOUBLE_EQ(speeds[0].decode_ns_per_byte, kOfLook);
}

}  // namespace
}  // namespace cgx::kernels
