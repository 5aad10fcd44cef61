// Conversions against the compiler's own, all of fp16 and a dense sample of fp32; and the types
// that are only ever raw.
#include "kernels/floats.h"

#include <cmath>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

TEST(Floats, EveryHalfConvertsAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float expected = static_cast<float>(half);
    const float converted = from_half(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_EQ(bits_of(converted), kNanBits);
    } else {
      ASSERT_EQ(bits_of(converted), bits_of(expected)) << bits;
      ASSERT_EQ(to_half(converted), bits);
    }
  }
}

TEST(Floats, RoundingToHalfIsNearestEven) {
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 0x1fd) {
    const float x = from_bits(static_cast<uint32_t>(bits));
    if (std::isnan(x)) {
      ASSERT_EQ(to_half(x), kHalfNan);
    } else {
      ASSERT_EQ(to_half(x), std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << bits;
    }
  }
}

TEST(Floats, RoundingToBrainIsNearestEven) {
  EXPECT_EQ(to_brain(1.0f), 0x3f80);
  EXPECT_EQ(to_brain(from_bits(0x3f808000)), 0x3f80);  // half way: to even
  EXPECT_EQ(to_brain(from_bits(0x3f818000)), 0x3f82);
  EXPECT_EQ(to_brain(from_bits(0x3f808001)), 0x3f81);
  EXPECT_EQ(to_brain(from_bits(0x7f7fffff)), 0x7f80);
  EXPECT_EQ(to_brain(from_bits(0x00000001)), 0x0000);
  EXPECT_EQ(to_brain(from_bits(0x807fffff)), 0x8080);
  EXPECT_EQ(to_brain(from_bits(0xffffffff)), kBrainNan);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = from_brain(static_cast<uint16_t>(bits));
    ASSERT_EQ(to_brain(x), std::isnan(x) ? kBrainNan : bits);
  }
}

TEST(Floats, OverflowBitsAreTheFirstThatRoundToInfinity) {
  EXPECT_EQ(to_half(from_bits(overflow_bits(DType::kF16))), 0x7c00);
  EXPECT_EQ(to_half(from_bits(overflow_bits(DType::kF16) - 1)), 0x7bff);
  EXPECT_EQ(to_brain(from_bits(overflow_bits(DType::kBF16))), 0x7f80);
  EXPECT_EQ(to_brain(from_bits(overflow_bits(DType::kBF16) - 1)), 0x7f7f);
}

TEST(Floats, CastsSaturateAndCount) {
  for (const Lane* lane : viable_lanes()) {
    const Floats values = {1e30f, -1e30f, 65520.0f, 65519.0f, from_bits(kInfBits), 0x1.fffffep127f};
    const CodecSpec half{.codec = 1}, brain{.codec = 2};
    EXPECT_EQ(encode(*lane, half, values).stats.saturated, 4u);
    EXPECT_EQ(encode(*lane, brain, values).stats.saturated, 1u);
    const Floats decoded = round_trip(*lane, half, values);
    EXPECT_EQ(decoded[0], 65504.0f);
    EXPECT_EQ(decoded[1], -65504.0f);
    EXPECT_TRUE(std::isinf(decoded[4]));
  }
}

TEST(Raw, KeepsTheBitsOfASingleRank) {
  std::mt19937_64 random(3);
  for (const Lane* lane : viable_lanes()) {
    Floats values(300);
    for (float& x : values) x = from_bits(static_cast<uint32_t>(random()));
    values[7] = from_bits(0x7f800001);  // a signalling NaN
    EXPECT_TRUE(same_bits(round_trip(*lane, {}, values), values));
  }
}

template <class T>
std::vector<T> reduce_two_ranks(const Lane& lane, DType dtype, std::vector<T> a, std::vector<T> b,
                                double scale) {
  const void* ranks[] = {a.data(), b.data()};
  void* targets[] = {a.data(), b.data()};
  LocalReduceJob job{.elements = a.size(), .targets = targets, .target_count = 2};
  job.source = {.ranks = ranks, .rank_count = 2, .dtype = dtype, .scale = scale};
  lane.local_reduce(job);
  EXPECT_TRUE(same_bits(a, b));
  return a;
}

TEST(Raw, IntegersWrapAndDoublesStayDouble) {
  for (const Lane* lane : viable_lanes()) {
    EXPECT_EQ(reduce_two_ranks<int8_t>(*lane, DType::kI8, {100, -100}, {100, -100}, 1),
              (std::vector<int8_t>{-56, 56}));
    EXPECT_EQ(reduce_two_ranks<uint8_t>(*lane, DType::kU8, {200}, {100}, 1),
              (std::vector<uint8_t>{44}));
    EXPECT_EQ(reduce_two_ranks<int32_t>(*lane, DType::kI32, {INT32_MAX}, {1}, 1),
              (std::vector<int32_t>{INT32_MIN}));
    EXPECT_EQ(reduce_two_ranks<int64_t>(*lane, DType::kI64, {1ll << 40}, {1}, 1),
              (std::vector<int64_t>{(1ll << 40) + 1}));
    EXPECT_EQ(reduce_two_ranks<double>(*lane, DType::kF64, {1.0, 2.0}, {1.0, 5.0}, 1.0 / 3),
              (std::vector<double>{2.0 * (1.0 / 3), 7.0 * (1.0 / 3)}));
  }
}

TEST(Raw, LocalReductionAddsResidualsOnceAndClearsThem) {
  for (const Lane* lane : viable_lanes()) {
    Floats a(700, 1.0f), b(700, 2.0f), residual(700, 0.25f), after(700, 9.0f);
    b[600] = from_bits(kInfBits);
    const void* ranks[] = {a.data(), b.data()};
    void* targets[] = {a.data(), b.data()};
    LocalReduceJob job{.elements = a.size(), .targets = targets, .target_count = 2};
    job.source = {.ranks = ranks, .rank_count = 2, .scale = 0.5, .residual_in = residual.data()};
    job.residual_out = after.data();
    lane->local_reduce(job);
    for (size_t i = 0; i < 700; ++i) {
      ASSERT_EQ(a[i], i == 600 ? from_bits(kInfBits) : 1.75f);
      ASSERT_EQ(after[i], i < 512 ? 0.0f : 0.25f) << "a non-finite bucket keeps its residual";
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
