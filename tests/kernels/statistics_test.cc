// What codecs promise of their errors: stochastic ones are unbiased, none errs by more than
// ARITHMETIC.md says, and the norms that planners see are the norms. Seeds are fixed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tests/kernels/codec_cases.h"
#include "tests/kernels/error_bounds.h"
#include "tests/kernels/every_spec.h"

namespace cgx::kernels::testing {
namespace {

constexpr uint32_t kBucket = 128;

Floats heavy_tailed(std::mt19937_64& random, size_t n) {
  Floats values = gradient(random, n, 1.0f);
  for (float& x : values) x = std::copysign(std::exp(2.5f * x), x) * 1e-3f;
  std::bernoulli_distribution flip(0.5);
  for (float& x : values) x = flip(random) ? -x : x;
  return values;
}

Floats one_sided(std::mt19937_64& random, size_t n) {
  Floats values = gradient(random, n, 0.01f);
  for (float& x : values) x = std::abs(x) + 0.02f;
  return values;
}

struct Data {
  const char* name;
  Floats values;
};
std::vector<Data> kinds_of_data(size_t n) {
  std::mt19937_64 random(21);
  std::vector<Data> kinds = {{"normal", gradient(random, n, 0.01f)},
                             {"normal with zeros", gradient(random, n, 0.01f, 0.3)},
                             {"heavy-tailed", heavy_tailed(random, n)},
                             {"one-sided", one_sided(random, n)}};
  return kinds;
}

TEST(Statistics, EveryCodecHasABound) {
  for (const CodecRow& row : codecs()) {
    EXPECT_TRUE(bounds().contains(row.name)) << row.name << " needs its bound here";
  }
}

TEST(Statistics, ErrorsStayWithinTheBound) {
  for (const CodecSpec& spec : every_spec(kBucket)) {
    for (const Data& data : kinds_of_data(20 * kBucket + 50)) {
      SCOPED_TRACE(data.name);
      const Floats decoded = round_trip(best_lane(), spec, data.values, {77, 5});
      EXPECT_TRUE(within_bounds(spec, data.values, decoded));
    }
  }
}

// What a codec's result is on average, where that is not the value itself.
double expected_of(const CodecSpec& spec, const Summary& bucket, double x) {
  if ((spec.flags & CodecSpec::kClip) == 0) return x;
  const double clip = clip_of(spec, bucket);
  return std::clamp(x, -clip, clip);
}

struct Mean {
  double mean, deviation;
};

// Mean of each decoded value over many keys, and the deviation of that mean.
std::vector<Mean> means_of(const CodecSpec& spec, const Floats& values, int keys) {
  std::vector<double> sums(values.size()), squares(values.size());
  for (int key = 0; key < keys; ++key) {
    const Floats decoded =
        round_trip(best_lane(), spec, values, {static_cast<uint64_t>(key) * 0x9e37 + 1, 0});
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = double{decoded[i]} - values[i];
      sums[i] += error;
      squares[i] += error * error;
    }
  }
  std::vector<Mean> means;
  for (size_t i = 0; i < values.size(); ++i) {
    const double mean = sums[i] / keys, variance = squares[i] / keys - mean * mean;
    means.push_back({values[i] + mean, std::sqrt(std::max(variance, 0.0) / keys)});
  }
  return means;
}

// The bias that the dither leaves, in steps: it has 8 bits up to 4-bit codes, then 16.
double dither_bias(const CodecSpec& spec) {
  const bool wide = spec.bits > 4 || find_codec(spec.codec)->name == std::string_view("int8");
  return wide ? 0x1p-17 : 0x1p-9;
}

TEST(Statistics, StochasticCodecsAreUnbiased) {
  constexpr int kKeys = 6000;
  for (const CodecSpec& spec : every_spec(64)) {
    const CodecRow& row = *find_codec(spec.codec);
    const bool selects = row.shared_draws && spec.values == SparseValues::kF32;
    if (!(spec.stochastic() || selects) || !bounds().contains(row.name)) continue;
    for (const Data& data : kinds_of_data(64)) {
      SCOPED_TRACE(to_string(spec) + " on " + data.name + " data");
      const Summary bucket(data.values);
      const std::vector<Mean> means = means_of(spec, data.values, kKeys);
      for (size_t i = 0; i < means.size(); ++i) {
        const double x = data.values[i], step = bounds().at(row.name)(spec, bucket, x);
        // A rare outcome may not have been seen: then the deviation is unknown, but below this.
        const double deviation = std::max(means[i].deviation, step / kKeys);
        ASSERT_NEAR(means[i].mean, expected_of(spec, bucket, x),
                    5 * deviation + 1.01 * dither_bias(spec) * step + 0x1p-20 * bucket.largest)
            << "value " << i;
      }
    }
  }
}

// The other way round: without a draw the same mean would be off by up to half a step.
TEST(Statistics, NearestRoundingIsNotUnbiased) {
  const CodecSpec spec{.codec = 3, .bits = 3, .bucket = 64};
  const Floats values = kinds_of_data(64)[0].values;
  const double step = maxmin_step(spec, Summary(values));
  double worst = 0;
  for (size_t i = 0; const Mean& mean : means_of(spec, values, 100)) {
    worst = std::max(worst, std::abs(mean.mean - values[i++]));
  }
  EXPECT_GT(worst, 0.4 * step);
}

double squares_of(const Floats& values) {
  double sum = 0;
  for (const float x : values) sum += double{x} * x;
  return sum;
}

// What feedback rests on: less is kept back than was meant. Nearest rounding; the rest is policy's.
TEST(Statistics, CodecsThatTakeFeedbackAreContractive) {
  for (CodecSpec spec : every_spec(kBucket)) {
    const CodecRow& row = *find_codec(spec.codec);
    spec.flags |= CodecSpec::kFeedback;
    if (spec.stochastic() || !row.has(CodecSpec::kFeedback)) continue;
    if (!check_policy(spec, nullptr).ok()) continue;
    for (const Data& data : kinds_of_data(20 * kBucket)) {
      SCOPED_TRACE(to_string(spec) + " on " + data.name + " data");
      Floats kept(data.values.size());
      encode(best_lane(), spec, data.values, {77, 5}, nullptr, kept.data());
      EXPECT_LT(squares_of(kept), squares_of(data.values));
    }
  }
}

// Signs: the share of the squared norm that is sent is known.
TEST(Statistics, SignsKeepBackWhatTheMeansDoNotHold) {
  const Floats values = kinds_of_data(kBucket)[2].values;
  const Summary bucket(values);
  const double mean = bucket.mean_magnitude();
  const CodecSpec efsign{.codec = 4, .bucket = kBucket};
  Floats kept(values.size());
  encode(best_lane(), efsign, values, {}, nullptr, kept.data());
  EXPECT_NEAR(squares_of(kept), bucket.squares - bucket.count * mean * mean, 1e-5 * bucket.squares);
}

RangeStats encode_with_norms(const Lane& lane, const CodecSpec& spec, const Floats& values,
                             Bytes& bytes) {
  const void* rank = values.data();
  bytes.resize(encoded_bytes(spec, DType::kF32, values.size()));
  EncodeJob job{.spec = spec, .elements = values.size(), .key = {3, 4}};
  job.source = {.ranks = &rank, .rank_count = 1};
  job.encoded = bytes;
  job.norms = true;
  RangeStats stats;
  bytes.resize(lane.encode(job, stats));
  return stats;
}

RangeStats reduce_with_norms(const Lane& lane, const CodecSpec& spec, const Floats& values) {
  const void* rank = values.data();
  const Contribution own{.kind = Contribution::Kind::kRaw,
                         .raw = {.ranks = &rank, .rank_count = 1}};
  Bytes bytes(encoded_bytes(spec, DType::kF32, values.size()));
  ReduceJob job{.spec = spec, .contributions = {&own, 1}, .elements = values.size(), .key = {3, 4}};
  job.encoded = bytes;
  job.norms = true;
  RangeStats stats;
  EXPECT_TRUE(lane.reduce(job, stats).ok());
  return stats;
}

TEST(Statistics, NormsAreThoseOfWhatWasMeantAndWhatWasSent) {
  for (const CodecSpec& spec : every_spec(kBucket)) {
    for (const Data& data : kinds_of_data(9 * kBucket + 77)) {
      SCOPED_TRACE(to_string(spec) + " on " + data.name + " data");
      Bytes bytes;
      const RangeStats stats = encode_with_norms(best_lane(), spec, data.values, bytes);
      const double intended = squares_of(data.values);
      const double sent = squares_of(decode(best_lane(), spec, bytes, data.values.size()));
      EXPECT_NEAR(stats.intended_sq, intended, 1e-4 * intended);
      EXPECT_NEAR(stats.sent_sq, sent, 1e-4 * sent);
    }
  }
}

TEST(Statistics, NormsAreTheSameBitsOnAllLanes) {
  std::vector<Data> kinds = kinds_of_data(9 * kBucket + 77);
  kinds.push_back({"huge", kinds[0].values});
  for (float& x : kinds.back().values) x *= 0x1p127f;
  kinds.push_back({"damaged", kinds[0].values});
  kinds.back().values[300] = from_bits(0x7f800000);
  for (const CodecSpec& spec : every_spec(kBucket)) {
    for (const Data& data : kinds) {
      Bytes bytes;
      const RangeStats encoded = encode_with_norms(scalar_lane(), spec, data.values, bytes);
      const RangeStats reduced = reduce_with_norms(scalar_lane(), spec, data.values);
      for (const Lane* lane : viable_lanes()) {
        SCOPED_TRACE(std::string(lane->name) + " " + to_string(spec) + " on " + data.name +
                     " data");
        const RangeStats again = encode_with_norms(*lane, spec, data.values, bytes);
        const RangeStats reduced_again = reduce_with_norms(*lane, spec, data.values);
        EXPECT_EQ(again.intended_sq, encoded.intended_sq);
        EXPECT_EQ(again.sent_sq, encoded.sent_sq);
        EXPECT_EQ(reduced_again.intended_sq, reduced.intended_sq);
        EXPECT_EQ(reduced_again.sent_sq, reduced.sent_sq);
      }
    }
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
