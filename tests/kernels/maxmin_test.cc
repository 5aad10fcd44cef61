// Max-min's particular promises: which metadata a bucket gets, what decoders refuse, how the
// rounding behaves on average. What every codec promises is in tests/conformance.
#include <algorithm>
#include <cmath>

#include "tests/kernels/codec_cases.h"

namespace cgx::kernels::testing {
namespace {

CodecSpec maxmin(uint8_t bits, bool stochastic = false, uint32_t bucket = 64) {
  return {.codec = 3,
          .bits = bits,
          .flags = static_cast<uint8_t>(stochastic ? CodecSpec::kStochastic : 0),
          .bucket = bucket};
}

struct Metadata {
  float first, second;
};
Metadata metadata_of(const Bytes& bytes) {
  Metadata metadata;
  std::memcpy(&metadata, bytes.data(), sizeof(metadata));
  return metadata;
}

// A bucket between `lo` and `hi`, with a zero if wanted.
Floats bucket(float lo, float hi, bool zero) {
  Floats values(64);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = lo + (hi - lo) * (static_cast<float>(i) / 63.0f);
  }
  values[0] = lo;
  values[63] = hi;
  for (float& x : values) {
    if (x == 0) x = hi;
  }
  if (zero) values[20] = 0.0f;
  return values;
}

TEST(MaxMin, PlainBucketsSendUnitAndLowEnd) {
  const Metadata m = metadata_of(encode(scalar_lane(), maxmin(4), bucket(-1, 2, false)).bytes);
  EXPECT_EQ(m.first, 3.0f / 15);
  EXPECT_EQ(m.second, -1.0f);
}

TEST(MaxMin, BucketsWithAZeroInsideSpareOneCode) {
  const Metadata m = metadata_of(encode(scalar_lane(), maxmin(4), bucket(-1, 2, true)).bytes);
  EXPECT_EQ(m.first, -(3.0f / 14));  // the sign says zero-exact
  EXPECT_EQ(m.second, 5.0f);         // ceil(1 / (3 / 14))
}

TEST(MaxMin, ZeroAtAnEndCostsNoCode) {
  const Metadata low = metadata_of(encode(scalar_lane(), maxmin(4), bucket(0, 3, true)).bytes);
  EXPECT_EQ(low.first, -(3.0f / 15));
  EXPECT_EQ(low.second, 0.0f);
  const Metadata high = metadata_of(encode(scalar_lane(), maxmin(4), bucket(-3, 0, true)).bytes);
  EXPECT_EQ(high.first, -(3.0f / 15));
  EXPECT_EQ(high.second, 15.0f);
}

TEST(MaxMin, EndPointsOfAPlainBucketSurvive) {
  for (uint8_t bits = 1; bits <= 8; ++bits) {
    const Floats values = bucket(-0.75f, 1.5f, false);
    const Floats decoded = round_trip(scalar_lane(), maxmin(bits), values);
    EXPECT_EQ(decoded[0], -0.75f);
    EXPECT_NEAR(decoded[63], 1.5f, 1e-6f);
  }
}

TEST(MaxMin, CodesEndWhereValuesWouldOverflow) {
  constexpr float kMax = 0x1.fffffep127f;
  Floats values = bucket(-kMax / 2, kMax / 2, false);
  for (float& x : values) x *= 2;  // the range itself is infinite
  const Encoded encoded = encode(best_lane(), maxmin(2), values);
  EXPECT_EQ(encoded.stats.nonfinite_buckets, 0u);
  EXPECT_GT(encoded.stats.saturated, 0u);
  Floats residual(values.size());
  encode(best_lane(), maxmin(2), values, {}, nullptr, residual.data());
  for (const float x : residual) EXPECT_TRUE(std::isfinite(x));
}

TEST(MaxMin, DecodersRefuseMetadataNoEncoderWrites) {
  const Bytes good = encode(scalar_lane(), maxmin(4), bucket(-1, 2, true)).bytes;
  const float kInfinity = from_bits(0x7f800000), kNan = from_bits(0x7fc00000);
  const Metadata kBad[] = {{-0.1f, -1.0f},    {-0.1f, 16.0f},     {-0.1f, 2.5f},
                           {-0.1f, kNan},     {-0.0f, 3.0f},      {-kInfinity, 3.0f},
                           {kInfinity, 0.0f}, {kNan, 0.0f},       {0.1f, kNan},
                           {0.1f, kInfinity}, {0.0f, -kInfinity}, {0.0f, from_bits(0x7fc00001)}};
  Floats out(64);
  void* target = out.data();
  for (const Lane* lane : viable_lanes()) {
    for (const Metadata& bad : kBad) {
      Bytes bytes = good;
      std::memcpy(bytes.data(), &bad, sizeof(bad));
      DecodeJob job{.spec = maxmin(4), .encoded = bytes, .elements = 64};
      job.targets = &target;
      job.target_count = 1;
      RangeStats stats;
      const Status status = lane->decode(job, stats);
      EXPECT_EQ(status.code(), StatusCode::kCORRUPT) << bad.first << " " << bad.second;
      EXPECT_NE(status.message().find("bucket 0"), std::string::npos);
    }
  }
}

// The vector lanes leave clamps out (ARITHMETIC.md "Where no clamp is needed"); the scalar lane has
// them. Ranges and values where a rounding could go over the edge: ends, their neighbours, halves.
TEST(MaxMin, CodesStayInRangeWithoutTheClamp) {
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  const auto end_point = [&](int spread) {
    const int exponent = static_cast<int>(random() % (2 * spread + 1)) - spread;
    return std::ldexp(1.0f + static_cast<float>(random() % (1 << 23)) * 0x1p-23f, exponent);
  };
  for (int round = 0; round < 4000; ++round) {
    const int spread = round % 2 ? 3 : 60;
    const float hi = end_point(spread), lo = round % 4 < 2 ? -end_point(spread) : hi - end_point(0);
    const uint8_t bits = 1 + random() % 8;
    const float unit = (hi - lo) / static_cast<float>((1 << bits) - 1 - random() % 2);
    Floats values(64);
    for (float& x : values) {
      const float half = static_cast<float>(random() % (2u << bits)) * 0.5f * unit;
      const float wanted[] = {lo, hi, lo + half, hi - half, half, -half, std::nextafter(half, hi)};
      x = std::clamp(wanted[random() % 7], std::min(lo, hi), std::max(lo, hi));
    }
    if (round % 3 == 0) values[9] = 0;
    const DrawKey key{random(), 0};
    for (const bool stochastic : {false, true}) {
      const CodecSpec spec = maxmin(bits, stochastic);
      const Encoded expected = encode(scalar_lane(), spec, values, key);
      for (const Lane* lane : viable_lanes()) {
        ASSERT_TRUE(same_bits(encode(*lane, spec, values, key).bytes, expected.bytes))
            << lane->name << " " << to_string(spec) << " from " << lo << " to " << hi;
      }
    }
  }
}

// The mean over many keys approaches the value: at 8 dither bits the bias is at most 2^-9 unit.
TEST(MaxMin, StochasticRoundingIsUnbiased) {
  constexpr int kKeys = 20000;
  for (const uint8_t bits : {1, 2, 3, 4, 6, 8}) {
    for (const bool zero : {false, true}) {
      const Floats values = bucket(-1, 2, zero);
      std::vector<double> sums(values.size(), 0.0);
      for (int key = 0; key < kKeys; ++key) {
        const Floats decoded =
            round_trip(best_lane(), maxmin(bits, true), values, {static_cast<uint64_t>(key), 0});
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += decoded[i];
      }
      const double unit = 3.0 / std::max(1.0, std::exp2(bits) - (zero && bits > 1 ? 2 : 1));
      const double noise = 5 * 0.5 / std::sqrt(kKeys);  // five sigmas of a coin
      for (size_t i = 0; i < sums.size(); ++i) {
        ASSERT_NEAR(sums[i] / kKeys, values[i], unit * (noise + 0x1p-9)) << int{bits} << " " << i;
      }
    }
  }
}

// Draws of different values, buckets and steps are unrelated: errors do not add up in step.
TEST(MaxMin, StochasticErrorsAreUncorrelated) {
  constexpr int kKeys = 4000;
  const Floats values(256, 0.3f);
  Floats all = values;
  for (size_t b = 0; b < 4; ++b) {
    all[64 * b] = 0.0f;
    all[64 * b + 1] = 1.0f;
  }
  std::vector<Floats> errors;
  for (int key = 0; key < kKeys; ++key) {
    Floats decoded = round_trip(best_lane(), maxmin(2, true), all, {static_cast<uint64_t>(key), 0});
    for (size_t i = 0; i < decoded.size(); ++i) decoded[i] -= all[i];
    errors.push_back(decoded);
  }
  const auto correlation = [&](size_t i, size_t j) {
    double ii = 0, jj = 0, ij = 0;
    for (const Floats& error : errors) {
      ii += error[i] * error[i];
      jj += error[j] * error[j];
      ij += error[i] * error[j];
    }
    return ij / std::sqrt(ii * jj);
  };
  for (size_t i = 2; i < 64; ++i) {
    for (const size_t j : {i + 1, i + 16, i + 32, i + 48, i + 64, i + 128}) {
      if (j % 64 < 2) continue;                                      // the exact ones
      ASSERT_LT(std::abs(correlation(i, j)), 0.1) << i << " " << j;  // six sigmas
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
