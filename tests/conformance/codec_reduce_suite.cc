// The owner's pass and local reduction: what kernels/codec.h promises of ReduceJob, DecodeAddJob
// and LocalReduceJob, for every codec on every lane.
#include <cmath>

#include "tests/conformance/codec_suite.h"

namespace cgx::kernels::testing {
namespace {

class ReduceConformance : public CodecConformance {
 protected:
  static constexpr size_t kElements = 5 * 128 + 77;

  struct Owner {
    std::vector<Floats> ranks;
    Floats residual;
    std::vector<const void*> pointers;
  };

  Contribution stream_of(const Floats& values) {
    const DrawKey key = shared_draws() ? key_ : DrawKey{9, streams_.size()};
    streams_.push_back(encode(lane(), spec(), values, key).bytes);
    Contribution part;
    part.kind = Contribution::Kind::kEncoded;
    part.encoded = streams_.back();
    return part;
  }

  bool shared_draws() const { return find_codec(spec().codec)->shared_draws; }
  // What is added of a stream: where draws are shared, the bare values; who decodes them with
  // feedback sees those.
  Floats added(const Bytes& stream) const {
    CodecSpec bare = spec();
    if (shared_draws()) bare.flags |= CodecSpec::kFeedback;
    return decode(lane(), bare, stream, kElements);
  }

  Contribution own(Owner& owner, double scale = 1.0) {
    for (const Floats& rank : owner.ranks) owner.pointers.push_back(rank.data());
    Contribution part;
    part.kind = Contribution::Kind::kRaw;
    part.raw = {.ranks = owner.pointers.data(),
                .rank_count = static_cast<uint32_t>(owner.ranks.size()),
                .scale = scale,
                .residual_in = owner.residual.empty() ? nullptr : owner.residual.data()};
    return part;
  }

  // Runs the reduction into bytes_ and result_.
  RangeStats reduce(const std::vector<Contribution>& parts, float* residual_out = nullptr,
                    const float* residual_in = nullptr) {
    bytes_.assign(encoded_bytes(spec(), DType::kF32, kElements), std::byte{0xee});
    result_.assign(kElements, -1.0f);
    void* target = result_.data();
    ReduceJob job{.spec = spec(), .contributions = parts, .elements = kElements};
    job.key = key_;
    job.encoded = bytes_;
    job.targets = &target;
    job.target_count = 1;
    job.residual_in = residual_in;
    job.residual_out = residual_out;
    RangeStats stats;
    const Result<uint64_t> used = lane().reduce(job, stats);
    EXPECT_TRUE(used.ok()) << used.status().to_string();
    bytes_.resize(used.ok() ? *used : 0);
    return stats;
  }

  struct Halves {
    std::vector<uint16_t> result;
    RangeStats stats;
  };
  // The same for one machine's ranks of fp16 tensors.
  template <size_t kRanks>
  Halves reduce_halves(const void* const (&ranks)[kRanks]) {
    const Contribution part = raw_of(ranks, DType::kF16);
    return reduce_halves(std::span(&part, 1));
  }
  template <size_t kRanks>
  static Contribution raw_of(const void* const (&ranks)[kRanks], DType dtype) {
    Contribution part;
    part.kind = Contribution::Kind::kRaw;
    part.raw = {.ranks = ranks, .rank_count = kRanks, .dtype = dtype};
    return part;
  }
  Halves reduce_halves(std::span<const Contribution> parts) {
    bytes_.assign(encoded_bytes(spec(), DType::kF16, kElements), std::byte{0});
    Halves outcome{std::vector<uint16_t>(kElements), {}};
    void* target = outcome.result.data();
    ReduceJob job{.spec = spec(), .contributions = parts, .elements = kElements};
    job.dtype = DType::kF16;
    job.key = key_;
    job.encoded = bytes_;
    job.targets = &target;
    job.target_count = 1;
    const Status status = lane().reduce(job, outcome.stats).status();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return outcome;
  }

  std::vector<Bytes> streams_ = [] {
    std::vector<Bytes> streams;
    streams.reserve(8);  // contributions point into it
    return streams;
  }();
  // An L2 norm is not among the values of its bucket.
  bool keeps_constants() const { return (spec().flags & CodecSpec::kL2Norm) == 0; }

  Bytes bytes_;
  Floats result_;
};

TEST_P(ReduceConformance, EqualsDecodeAddAndEncodeInOrder) {
  if (is_vote(spec())) GTEST_SKIP() << "votes are counted, not added: votes_test.cc";
  Owner owner{{gradient(random_, kElements, 1.0f, 0.2), gradient(random_, kElements)}, {}, {}};
  owner.residual = gradient(random_, kElements, 0.1f);
  const std::vector<Contribution> parts = {stream_of(gradient(random_, kElements)),
                                           own(owner, 1.0 / 3), Contribution{},
                                           stream_of(gradient(random_, kElements, 1.0f, 0.3))};
  Floats residual(kElements);
  reduce(parts, residual.data());

  Floats sum(kElements, 0.0f);
  const Floats first = added(streams_[0]), last = added(streams_[1]);
  for (size_t i = 0; i < kElements; ++i) {
    const float machine = (owner.ranks[0][i] + owner.ranks[1][i]) * (1.0f / 3) + owner.residual[i];
    sum[i] = ((sum[i] + first[i]) + machine) + last[i];
  }
  EXPECT_TRUE(same_bits(bytes_, encode(lane(), spec(), sum, key_).bytes));
  EXPECT_TRUE(same_bits(result_, decode(lane(), spec(), bytes_, kElements)));
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(residual[i], sum[i] - result_[i]) << i;
}

// Whoever has decoded a part itself, or has another codec for it, hands over its values.
TEST_P(ReduceConformance, AddsValuesOfFp32ToHalvesAsThePartsThatTheyWereDecodedFrom) {
  if (is_vote(spec())) GTEST_SKIP() << "votes are counted, not added: votes_test.cc";
  std::vector<uint16_t> half(kElements);  // of magnitudes from an eighth to two
  for (uint16_t& x : half) {
    x = static_cast<uint16_t>((random_() & 1) << 15 | (0x3000 + random_() % 0x1000));
  }
  const void* const ranks[] = {half.data()};
  const Contribution own = raw_of(ranks, DType::kF16);
  const std::vector<Contribution> parts = {stream_of(gradient(random_, kElements)), own,
                                           stream_of(gradient(random_, kElements, 1.0f, 0.3))};
  const Halves expected = reduce_halves(parts);
  const Bytes bytes = bytes_;
  const Floats first = added(streams_[0]), last = added(streams_[1]);
  const void *const of_first[] = {first.data()}, *const of_last[] = {last.data()};
  const std::vector<Contribution> values = {raw_of(of_first, DType::kF32), own,
                                            raw_of(of_last, DType::kF32)};
  EXPECT_EQ(reduce_halves(values).result, expected.result);
  EXPECT_TRUE(same_bits(bytes_, bytes));
  const std::vector<Contribution> mixed = {raw_of(of_first, DType::kF32), own, parts[2]};
  EXPECT_EQ(reduce_halves(mixed).result, expected.result);
}

TEST_P(ReduceConformance, CombineAddsEveryPartInOrder) {
  if (is_vote(spec())) GTEST_SKIP() << "votes are counted, not added: votes_test.cc";
  const std::vector<Contribution> parts = {stream_of(gradient(random_, kElements, 1.0f, 0.2)),
                                           Contribution{}, stream_of(gradient(random_, kElements)),
                                           stream_of(gradient(random_, kElements))};
  Floats expected(kElements, 0.0f);
  for (const Bytes& stream : streams_) {
    const Floats values = added(stream);
    for (size_t i = 0; i < kElements; ++i) expected[i] += values[i];
  }
  for (size_t i = 0; i < kElements; ++i) expected[i] *= weight_of(i, kElements);
  Floats first(kElements), second(kElements);
  void* targets[] = {first.data(), second.data()};
  CombineJob job{.spec = spec(), .contributions = parts, .elements = kElements};
  job.targets = targets;
  job.target_count = 2;
  RangeStats stats;
  ASSERT_TRUE(lane().combine(job, stats).ok());
  EXPECT_TRUE(same_bits(first, expected));
  EXPECT_TRUE(same_bits(second, expected));
  EXPECT_EQ(stats.nonfinite_buckets, 0u);
}

TEST_P(ReduceConformance, CombineRestoresResidualsWhereTheResultIsNotFinite) {
  Floats values = gradient(random_, kElements);
  values[130] = from_bits(0x7f800000);
  const std::vector<Contribution> parts = {stream_of(gradient(random_, kElements)),
                                           stream_of(values)};
  const Floats before = gradient(random_, kElements);
  Floats result(kElements), after(kElements, 7.0f);
  void* target = result.data();
  CombineJob job{.spec = spec(), .contributions = parts, .elements = kElements};
  job.targets = &target;
  job.target_count = 1;
  job.residual_in = before.data();
  job.residual_out = after.data();
  job.residual_scale = 0.5f;
  RangeStats stats;
  ASSERT_TRUE(lane().combine(job, stats).ok());
  EXPECT_EQ(stats.nonfinite_buckets, 1u);
  for (size_t i = 0; i < kElements; ++i) {
    const bool damaged = i / spec().bucket == 130 / spec().bucket;
    ASSERT_EQ(after[i], damaged ? before[i] * 0.5f : 7.0f) << i;
    ASSERT_EQ(std::isfinite(result[i]), quantizer() ? !damaged : i != 130) << i;
  }
}

TEST_P(ReduceConformance, ResultsMayReplaceTheOwnRanks) {
  Owner owner{{gradient(random_, kElements), gradient(random_, kElements)}, {}, {}};
  const std::vector<Contribution> parts = {own(owner), stream_of(gradient(random_, kElements))};
  reduce(parts);
  const Bytes expected = bytes_;
  void* targets[] = {owner.ranks[0].data(), owner.ranks[1].data()};
  ReduceJob job{.spec = spec(), .contributions = parts, .elements = kElements, .key = key_};
  bytes_.resize(encoded_bytes(spec(), DType::kF32, kElements));
  job.encoded = bytes_;
  job.targets = targets;
  job.target_count = 2;
  RangeStats stats;
  const Result<uint64_t> used = lane().reduce(job, stats);
  ASSERT_TRUE(used.ok());
  bytes_.resize(*used);
  EXPECT_TRUE(same_bits(bytes_, expected));
  EXPECT_TRUE(same_bits(owner.ranks[0], result_));
  EXPECT_TRUE(same_bits(owner.ranks[1], result_));
}

TEST_P(ReduceConformance, WithoutContributionsTheResultIsZero) {
  reduce({Contribution{}, Contribution{}});
  EXPECT_TRUE(same_bits(result_, Floats(kElements, 0.0f)));
  Owner owner;  // present, but without ranks: 0 + residual
  owner.residual.assign(kElements, 0.5f);
  reduce({own(owner)});
  if (!keeps_constants() || is_vote(spec())) return;  // who has no rank has no vote
  EXPECT_TRUE(same_bits(result_, round_trip(Floats(kElements, 0.5f))));
}

TEST_P(ReduceConformance, ANonFiniteContributionShowsAndRestoresTheResidual) {
  Floats bad = gradient(random_, kElements);
  bad[200] = from_bits(0xff800000);
  const std::vector<Contribution> parts = {stream_of(gradient(random_, kElements)), stream_of(bad)};
  const Floats confirmed = gradient(random_, kElements);
  Floats tentative(kElements);
  EXPECT_EQ(reduce(parts, tentative.data(), confirmed.data()).nonfinite_buckets, 1u);
  EXPECT_FALSE(std::isfinite(result_[200]));
  for (size_t i = 0; i < kElements; ++i) {
    if (i / spec().bucket == 200 / spec().bucket) {
      ASSERT_EQ(tentative[i], confirmed[i]);
    }
    ASSERT_TRUE(std::isfinite(tentative[i]));
  }
}

TEST_P(ReduceConformance, WhatTheTensorsTypeCannotHoldIsNonFinite) {
  if (is_vote(spec())) GTEST_SKIP() << "a vote has no size";
  std::vector<uint16_t> rank(kElements, 0x3c00);  // 1.0
  rank[300] = 0x7bff;                             // 65504
  const void* ranks[] = {rank.data(), rank.data()};
  const auto [result, stats] = reduce_halves(ranks);
  EXPECT_EQ(stats.nonfinite_buckets, 1u);
  EXPECT_EQ(result[300], quantizer() ? 0x7e00 : 0x7c00);
  if (!keeps_constants()) return;
  EXPECT_EQ(result[10], sparse() ? 0x7e00 : 0x4000);  // its bucket is the whole tensor
}

TEST_P(ReduceConformance, AFiniteResultOfHalfTensorsStaysFinite) {
  SCOPED_TRACE("CGX_TEST_SEED=" + std::to_string(test_seed()));
  std::vector<uint16_t> rank(kElements);
  for (uint16_t& x : rank)
    x = static_cast<uint16_t>((random_() & 1) << 15 | 0x7800 | random_() % 0x400);
  for (size_t i = 0; i < kElements; i += 3) rank[i] = 0;
  const void* ranks[] = {rank.data()};
  const auto [result, stats] = reduce_halves(ranks);
  EXPECT_EQ(stats.nonfinite_buckets, 0u);
  for (const uint16_t x : result) ASSERT_LT(x & 0x7fff, 0x7c00);
}

TEST_P(ReduceConformance, CorruptContributionsAreNamed) {
  Contribution part = stream_of(gradient(random_, kElements));
  const uint64_t meta = meta_bytes(spec());
  if (meta > 0) {
    const uint32_t kBadUnit = 0x7f800000;
    std::memcpy(streams_.back().data() + 3 * meta, &kBadUnit, 4);
  } else {
    part.encoded = part.encoded.first(part.encoded.size() - 1);
  }
  Bytes bytes(encoded_bytes(spec(), DType::kF32, kElements));
  ReduceJob job{.spec = spec(), .contributions = {&part, 1}, .elements = kElements};
  job.encoded = bytes;
  RangeStats stats;
  const Status status = lane().reduce(job, stats).status();
  EXPECT_EQ(status.code(), StatusCode::kCORRUPT);
  if (meta > 0) {
    EXPECT_NE(status.message().find("bucket 3"), std::string::npos);
  }
}

TEST_P(ReduceConformance, DecodeAddAddsTheDecodedValues) {
  const Floats values = gradient(random_, kElements), start = gradient(random_, kElements);
  const Bytes bytes = encode(lane(), spec(), values, key_).bytes;
  const Floats decoded = decode(lane(), spec(), bytes, kElements);
  Floats sum = start;
  DecodeAddJob job{.spec = spec(), .encoded = bytes, .elements = kElements, .sum = sum.data()};
  RangeStats stats;
  ASSERT_TRUE(lane().decode_add(job, stats).ok());
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(sum[i], start[i] + decoded[i]);
}

INSTANTIATE_TEST_SUITE_P(Codecs, ReduceConformance, ::testing::ValuesIn(all_codecs_on_lanes()),
                         codec_on_lane_name);

}  // namespace
}  // namespace cgx::kernels::testing
