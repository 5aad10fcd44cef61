#include "tests/conformance/codec_suite.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/error_bounds.h"

namespace cgx::kernels::testing {

constexpr uint32_t kBucket = 128;

std::vector<CodecOnLane> all_codecs_on_lanes() {
  std::vector<CodecOnLane> all;
  for (const Lane* lane : viable_lanes()) {
    for (const CodecSpec& spec : all_specs(kBucket)) all.push_back({lane, spec});
  }
  return all;
}

template <class Keep>
std::vector<CodecOnLane> those_that(Keep keep) {
  std::vector<CodecOnLane> all = all_codecs_on_lanes();
  std::erase_if(all, [&](const CodecOnLane& param) { return !keep(param.spec); });
  return all;
}

std::vector<CodecOnLane> maxmin_on_lanes() {
  return those_that([](const CodecSpec& spec) {
    return find_codec(spec.codec)->name == std::string_view("maxmin");
  });
}

std::vector<CodecOnLane> zero_exact_codecs_on_lanes() {
  return those_that(
      [](const CodecSpec& spec) { return find_codec(spec.codec)->zero_exact && spec.bits != 1; });
}

std::string codec_on_lane_name(const ::testing::TestParamInfo<CodecOnLane>& info) {
  const CodecSpec& spec = info.param.spec;
  std::string name = std::string(info.param.lane->name) + "_" + find_codec(spec.codec)->name;
  if (spec.bits != 0) name += std::to_string(spec.bits);
  if (spec.flags & CodecSpec::kL2Norm) name += "_l2";
  if (spec.flags & CodecSpec::kClip) name += "_clip";
  if (spec.values != SparseValues::kF32) name += "_v" + std::to_string(int(spec.values));
  if (spec.feedback()) name += "_feedback";
  return name + (spec.stochastic() ? "_stochastic" : "");
}

float CodecConformance::weight_of(size_t i, size_t n) const {
  if (!find_codec(spec().codec)->shared_draws || spec().feedback()) return 1;
  const size_t stride = std::lround(1 / spec().amount);
  return static_cast<float>(std::min(stride, n - i / stride * stride));
}

namespace {

class MaxMinConformance : public CodecConformance {};
class ZeroExactConformance : public CodecConformance {};

TEST_P(CodecConformance, ErrorStaysWithinTheBound) {
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  for (const double zeros : {0.0, 0.5}) {
    Floats values = gradient(random_, 8 * kBucket + 37, 0.01f, zeros);
    for (size_t i = 0; i < 3 * kBucket; ++i) values[i] += 0.02f;  // mostly one sign
    EXPECT_TRUE(within_bounds(spec(), values, round_trip(values)));
  }
}

TEST_P(ZeroExactConformance, ExactZerosStayExact) {
  Floats values = gradient(random_, 16 * kBucket, 0.3f, 0.3);
  for (size_t i = 0; i < kBucket; ++i) values[i] = std::abs(values[i]);
  for (size_t i = kBucket; i < 2 * kBucket; ++i) values[i] = -std::abs(values[i]);
  for (size_t i = 2 * kBucket; i < 3 * kBucket; ++i) values[i] = i % 2 ? 0.0f : -0.0f;
  for (size_t i = 0; i < values.size(); i += 7) values[i] = -0.0f;
  const Floats decoded = round_trip(values);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      ASSERT_EQ(decoded[i], 0.0f) << i;
    }
  }
}

TEST_P(CodecConformance, NonFiniteValuesNeverHide) {
  const float kBad[] = {from_bits(0x7fc00000), from_bits(0xffffffff), from_bits(0x7f800001),
                        from_bits(0x7f800000), from_bits(0xff800000)};
  for (const float bad : kBad) {
    for (const size_t where : {size_t{0}, size_t{70}, size_t{127}}) {
      Floats values = gradient(random_, 3 * kBucket);
      values[kBucket + where] = bad;
      const Encoded encoded = encode(lane(), spec(), values, key_);
      EXPECT_EQ(encoded.stats.nonfinite_buckets, 1u);
      const Floats decoded = decode(lane(), spec(), encoded.bytes, values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t bucket = spec().bucket, bad_value = kBucket + where;
        const bool damaged = quantizer() ? i / bucket == bad_value / bucket : i == bad_value;
        ASSERT_EQ(std::isfinite(decoded[i]), !damaged) << i;
        if (quantizer() && damaged) {
          ASSERT_TRUE(std::isnan(decoded[i]));
        }
      }
      if (!quantizer()) {
        EXPECT_EQ(std::isnan(decoded[kBucket + where]), std::isnan(bad));
      }
    }
  }
}

TEST_P(CodecConformance, FiniteInputNeverBecomesNonFinite) {
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  constexpr float kMax = 0x1.fffffep127f;
  std::uniform_real_distribution<float> unit(-1.0f, 1.0f);
  for (const float scale :
       {0x1p-140f, 0x1p-126f, 0x1p-100f, 1.0f, 65519.0f, 0x1p124f, 0x1p125f, kMax}) {
    Floats values(4 * kBucket);
    for (float& x : values) x = unit(random_) * scale;
    for (size_t i = 0; i < kBucket; ++i) values[i] = i % 2 ? scale : -scale;
    for (size_t i = kBucket; i < 2 * kBucket; ++i) values[i] = i % 3 ? values[i] : 0.0f;
    for (const float decoded : round_trip(values)) ASSERT_TRUE(std::isfinite(decoded)) << scale;
  }
}

TEST_P(MaxMinConformance, ConstantBucketsAreExact) {
  for (const float x : {0.0f, 1.0f, -0.1f, 0x1p-149f, 0x1p-126f, -0x1.fffffep127f}) {
    const Floats values(kBucket + 9, x);
    EXPECT_TRUE(same_bits(round_trip(values), values)) << x;
  }
}

TEST_P(MaxMinConformance, NearlyConstantBucketsDecodeToTheirLowEnd) {
  Floats values(kBucket, 0x1p-110f);
  values[5] = 0x1p-111f;
  EXPECT_TRUE(same_bits(round_trip(values), Floats(kBucket, 0x1p-111f)));
  values[6] = 0;
  EXPECT_TRUE(same_bits(round_trip(values), Floats(kBucket, 0.0f)));
}

TEST_P(CodecConformance, EveryLengthRoundTripsAndStaysInItsBuffers) {
  for (size_t n = 0; n <= 2 * kBucket + 1; ++n) {
    const Floats values = gradient(random_, n, 1.0f, 0.1);
    Buffer<float> source(values, 4), target(n, 8);
    Buffer<std::byte> encoded(encoded_bytes(spec(), DType::kF32, n), n % 8);
    const void* rank = source.data();
    void* to = target.data();
    EncodeJob job{.spec = spec(), .elements = n, .key = key_};
    job.source = {.ranks = &rank, .rank_count = 1};
    job.encoded = encoded.span();
    RangeStats stats;
    const uint64_t used = lane().encode(job, stats);
    DecodeJob back{.spec = spec(), .encoded = encoded.span().first(used), .elements = n};
    back.targets = &to;
    back.target_count = 1;
    ASSERT_TRUE(lane().decode(back, stats).ok());
    ASSERT_TRUE(source.guards_intact() && target.guards_intact() && encoded.guards_intact()) << n;
    ASSERT_TRUE(same_bits(source.values(), values)) << "the source was written";
    ASSERT_TRUE(same_bits(target.values(), round_trip(values)));
  }
}

// Groups merge sending, never encoding: what a bucket becomes does not depend on its neighbours.
TEST_P(CodecConformance, ABucketDoesNotDependOnTheRange) {
  const size_t buckets = sparse() ? 2 : 5, bucket = spec().bucket, n = buckets * bucket - 50;
  const Floats values = gradient(random_, n, 1.0f, 0.2);
  const Floats whole = round_trip(values);
  for (size_t b = 0; b < buckets; ++b) {
    const auto end = std::min(n, (b + 1) * bucket);
    const Floats part(values.begin() + b * bucket, values.begin() + end);
    const DrawKey key{key_.stream, key_.first_bucket + b};
    EXPECT_TRUE(same_bits(testing::round_trip(lane(), spec(), part, key),
                          Floats(whole.begin() + b * bucket, whole.begin() + end)));
  }
}

TEST_P(CodecConformance, AllTargetsGetTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Floats values = gradient(random_, 3 * kBucket + 5);
    const Bytes bytes = encode(lane(), spec(), values, key_).bytes;
    const size_t size = values.size() * dtype_bytes(dtype);
    std::vector<std::vector<uint8_t>> results(3, std::vector<uint8_t>(size));
    std::vector<void*> targets;
    for (auto& result : results) targets.push_back(result.data());
    DecodeJob job{.spec = spec(), .encoded = bytes, .elements = values.size(), .dtype = dtype};
    job.targets = targets.data();
    job.target_count = 3;
    RangeStats stats;
    ASSERT_TRUE(lane().decode(job, stats).ok());
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST_P(CodecConformance, ResidualIsWhatWasNotSent) {
  const size_t n = 6 * kBucket + 11;
  const Floats values = gradient(random_, n, 1.0f, 0.2), before = gradient(random_, n, 0.1f, 0.2);
  Floats after(n), sum(n);
  for (size_t i = 0; i < n; ++i) sum[i] = values[i] + before[i];
  const Encoded encoded = encode(lane(), spec(), values, key_, before.data(), after.data());
  const Floats sent = decode(lane(), spec(), encoded.bytes, n);
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(after[i], sum[i] - sent[i]) << i;
  EXPECT_TRUE(same_bits(encoded.bytes, encode(lane(), spec(), sum, key_).bytes));
}

TEST_P(CodecConformance, NonFiniteBucketsKeepTheirResidual) {
  const size_t n = 3 * kBucket;
  Floats values = gradient(random_, n), before = gradient(random_, n, 0.1f), after(n);
  values[kBucket + 3] = from_bits(0x7f800000);
  encode(lane(), spec(), values, key_, before.data(), after.data());
  for (size_t i = kBucket; i < 2 * kBucket; ++i) ASSERT_EQ(after[i], before[i]);
  Floats first(n, 1.0f);
  encode(lane(), spec(), values, key_, nullptr, first.data());
  for (size_t i = kBucket; i < 2 * kBucket; ++i) ASSERT_EQ(first[i], 0.0f);
}

TEST_P(CodecConformance, ResidualsThatTheUnitsCannotExpressAreForgotten) {
  const size_t n = 3 * kBucket;
  const Floats values = gradient(random_, n);
  Floats before(n), after(n, 7.0f);
  before[kBucket + 3] = 1e30f;
  const Encoded encoded = encode(lane(), spec(), values, key_, before.data(), after.data(), 1e30f);
  EXPECT_GE(encoded.stats.nonfinite_buckets, 1u);
  for (size_t i = 0; i < n; ++i) ASSERT_TRUE(std::isfinite(after[i])) << i << " " << after[i];
  EXPECT_EQ(after[kBucket + 3], 0.0f);
  const Encoded next = encode(lane(), spec(), values, key_, after.data(), after.data());
  EXPECT_EQ(next.stats.nonfinite_buckets, 0u);
}

TEST_P(CodecConformance, NonFiniteResultsRestoreTheResidualOnDecode) {
  const size_t n = 3 * kBucket;
  Floats values = gradient(random_, n), confirmed = gradient(random_, n), tentative(n, 7.0f),
         out(n);
  values[2 * kBucket] = from_bits(0x7fc00000);
  const Bytes bytes = encode(lane(), spec(), values, key_).bytes;
  void* target = out.data();
  DecodeJob job{.spec = spec(), .encoded = bytes, .elements = n};
  job.targets = &target;
  job.target_count = 1;
  job.residual_in = confirmed.data();
  job.residual_out = tentative.data();
  RangeStats stats;
  ASSERT_TRUE(lane().decode(job, stats).ok());
  EXPECT_EQ(stats.nonfinite_buckets, 1u);
  for (size_t i = 0; i < n; ++i) {
    const bool restored = i / spec().bucket == 2 * kBucket / spec().bucket;
    ASSERT_EQ(tentative[i], restored ? confirmed[i] : 7.0f) << i;
  }
}

TEST_P(CodecConformance, SameKeySameBytesOtherKeyOtherDraws) {
  const Floats values = gradient(random_, 4 * kBucket);
  const Bytes bytes = encode(lane(), spec(), values, key_).bytes;
  EXPECT_TRUE(same_bits(bytes, encode(lane(), spec(), values, key_).bytes));
  for (const DrawKey other : {DrawKey{key_.stream + 1, 3}, DrawKey{key_.stream, 4}}) {
    const bool draws = spec().stochastic() || find_codec(spec().codec)->shared_draws;
    EXPECT_EQ(bytes == encode(lane(), spec(), values, other).bytes, !draws);
  }
}

TEST_P(CodecConformance, WrongSizesAreCorrupt) {
  const Bytes bytes = encode(lane(), spec(), gradient(random_, 3 * kBucket), key_).bytes;
  Bytes longer(bytes.size() + 8);
  std::copy(bytes.begin(), bytes.end(), longer.begin());
  Floats out(3 * kBucket);
  void* target = out.data();
  for (const size_t size :
       {bytes.size() - 8, bytes.size() - 1, bytes.size() + 1, bytes.size() + 8}) {
    DecodeJob job{.spec = spec(), .encoded = std::span(longer).first(size), .elements = out.size()};
    job.targets = &target;
    job.target_count = 1;
    RangeStats stats;
    EXPECT_EQ(lane().decode(job, stats).code(), StatusCode::kCORRUPT);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecConformance, ::testing::ValuesIn(all_codecs_on_lanes()),
                         codec_on_lane_name);
INSTANTIATE_TEST_SUITE_P(Codecs, MaxMinConformance, ::testing::ValuesIn(maxmin_on_lanes()),
                         codec_on_lane_name);
INSTANTIATE_TEST_SUITE_P(Codecs, ZeroExactConformance,
                         ::testing::ValuesIn(zero_exact_codecs_on_lanes()), codec_on_lane_name);

}  // namespace

}  // namespace cgx::kernels::testing
