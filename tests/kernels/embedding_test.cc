// An embedding trained with Adam on two machines through a codec: most rows get no gradient in a
// step, many never. Adam divides by the gradient's own size, so any noise where there is no
// gradient moves a weight as far as a gradient would. Codecs that promise exact zeros leave such
// rows alone, bit for bit.
#include <cmath>

#include "tests/kernels/codec_cases.h"
#include "tests/kernels/every_spec.h"

namespace cgx::kernels::testing {
namespace {

constexpr size_t kRows = 64, kWidth = 16, kWeights = kRows * kWidth;
constexpr int kSteps = 200;

bool is_trained(size_t row) {
  return row % 4 == 1;
}

// Two machines, the first of which owns the tensor: the second one encodes its gradient, the first
// adds its own and encodes the sum, both take what that decodes to.
class TwoMachines {
 public:
  explicit TwoMachines(const CodecSpec& spec) : spec_(spec) {}

  Floats sum(const Floats& first, const Floats& second) {
    const Bytes part = encode_part(second);
    const void* own = first.data();
    Contribution parts[2] = {{.kind = Contribution::Kind::kRaw, .raw = view(&own, residuals_[0])},
                             {.kind = Contribution::Kind::kEncoded, .encoded = part}};
    Floats result(kWeights);
    void* target = result.data();
    Bytes encoded(encoded_bytes(spec_, DType::kF32, kWeights));
    ReduceJob job{.spec = spec_, .contributions = parts, .elements = kWeights, .key = key(2)};
    job.residual_in = spec_.feedback() ? residuals_[0].data() : nullptr;
    job.residual_out = spec_.feedback() ? residuals_[0].data() : nullptr;
    job.encoded = encoded;
    job.targets = &target;
    job.target_count = 1;
    RangeStats stats;
    const Result<uint64_t> used = best_lane().reduce(job, stats);
    EXPECT_TRUE(used.ok()) << used.status().to_string();
    encoded.resize(used.ok() ? *used : 0);
    EXPECT_TRUE(same_bits(decode(best_lane(), spec_, encoded, kWeights), result));
    ++step_;
    return result;
  }

 private:
  RawView view(const void* const* rank, const Floats& residual) const {
    return {.ranks = rank,
            .rank_count = 1,
            .residual_in = spec_.feedback() ? residual.data() : nullptr};
  }
  DrawKey key(uint32_t phase) const {
    if (find_codec(spec_.codec)->shared_draws) phase = 0;
    return {draw_stream({1, 2, 3, step_, phase, 0}), 0};
  }
  Bytes encode_part(const Floats& gradient) {
    const void* rank = gradient.data();
    Bytes bytes(encoded_bytes(spec_, DType::kF32, kWeights));
    EncodeJob job{.spec = spec_, .source = view(&rank, residuals_[1]), .elements = kWeights};
    job.key = key(1);
    job.residual_out = spec_.feedback() ? residuals_[1].data() : nullptr;
    job.encoded = bytes;
    RangeStats stats;
    bytes.resize(best_lane().encode(job, stats));
    return bytes;
  }

  CodecSpec spec_;
  Floats residuals_[2] = {Floats(kWeights), Floats(kWeights)};
  uint64_t step_ = 0;
};

class Adam {
 public:
  void update(const Floats& gradient, Floats& weights) {
    ++step_;
    const float unbias1 = 1 - std::pow(0.9f, step_), unbias2 = 1 - std::pow(0.999f, step_);
    for (size_t i = 0; i < kWeights; ++i) {
      mean_[i] = 0.9f * mean_[i] + 0.1f * gradient[i];
      square_[i] = 0.999f * square_[i] + 0.001f * gradient[i] * gradient[i];
      weights[i] -= 0.01f * (mean_[i] / unbias1) / (std::sqrt(square_[i] / unbias2) + 1e-8f);
    }
  }

 private:
  float step_ = 0;
  Floats mean_ = Floats(kWeights), square_ = Floats(kWeights);
};

// The gradient of one machine's batch: a few of the trained rows.
Floats batch(std::mt19937_64& random) {
  Floats gradient(kWeights);
  for (size_t row = 0; row < kRows; ++row) {
    if (!is_trained(row) || random() % 2) continue;
    const Floats values = testing::gradient(random, kWidth, 0.01f);
    std::copy(values.begin(), values.end(), gradient.begin() + static_cast<long>(row * kWidth));
  }
  return gradient;
}

struct Moved {
  size_t trained = 0, untrained = 0;  // weights whose bits changed
};

Moved train(const CodecSpec& spec) {
  std::mt19937_64 random(5);
  const Floats start = testing::gradient(random, kWeights);
  Floats weights = start;
  TwoMachines machines(spec);
  Adam adam;
  for (int step = 0; step < kSteps; ++step) {
    const Floats first = batch(random), second = batch(random);
    adam.update(machines.sum(first, second), weights);
  }
  Moved moved;
  for (size_t i = 0; i < kWeights; ++i) {
    if (std::bit_cast<uint32_t>(start[i]) == std::bit_cast<uint32_t>(weights[i])) continue;
    ++(is_trained(i / kWidth) ? moved.trained : moved.untrained);
  }
  return moved;
}

bool keeps_zeros(const CodecSpec& spec) {
  return find_codec(spec.codec)->zero_exact && spec.bits != 1;
}

// Each spec alone and, where that is sound, with feedback.
std::vector<CodecSpec> trainings(bool zero_exact) {
  std::vector<CodecSpec> specs;
  for (CodecSpec spec : every_spec(256)) {
    if (keeps_zeros(spec) != zero_exact) continue;
    specs.push_back(spec);
    spec.flags |= CodecSpec::kFeedback;
    if (check_policy(spec, nullptr).ok()) specs.push_back(spec);
  }
  return specs;
}

TEST(Embedding, RowsWithoutGradientKeepTheirBitsUnderZeroExactCodecs) {
  for (const CodecSpec& spec : trainings(true)) {
    SCOPED_TRACE(to_string(spec));
    const Moved moved = train(spec);
    EXPECT_EQ(moved.untrained, 0u);
    EXPECT_GT(moved.trained, 0u);
  }
}

TEST(Embedding, RowsWithoutGradientMoveUnderTheOthers) {
  for (const CodecSpec& spec : trainings(false)) {
    SCOPED_TRACE(to_string(spec));
    EXPECT_GT(train(spec).untrained, 0u);
  }
}

}  // namespace
}  // namespace cgx::kernels::testing
