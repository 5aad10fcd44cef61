#include "scheduler/planners/layerwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "tests/scheduler/planners/maxmin_error.h"

namespace cgx::scheduler {
namespace {

using Tensors = std::vector<std::vector<LayerCandidate>>;

// Max-min with 2 to 8 bits, spreads over some powers of ten.
Tensors random_tensors(std::mt19937& random, size_t count, uint32_t bits_max = 8) {
  Tensors tensors(count);
  for (auto& tensor : tensors) {
    const uint64_t elements = 512 + random() % 100'000;
    const double spread = static_cast<double>(elements) * std::pow(10.0, random() % 40 * 0.1);
    for (uint32_t bits = 2; bits <= bits_max; ++bits) {
      tensor.push_back({elements * bits / 8, maxmin_squared_error(spread, bits)});
    }
  }
  return tensors;
}

double uniform_error(const Tensors& tensors, size_t choice) {
  double error = 0;
  for (const auto& tensor : tensors) error += tensor[choice].squared_error;
  return error;
}
uint64_t uniform_bytes(const Tensors& tensors, size_t choice) {
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor[choice].bytes;
  return bytes;
}

uint64_t fewest_bytes(const Tensors& tensors, double bound, size_t tensor = 0) {
  if (tensor == tensors.size()) return bound >= -1e-9 ? 0 : UINT64_MAX / 2;
  uint64_t fewest = UINT64_MAX / 2;
  for (const LayerCandidate& each : tensors[tensor]) {
    if (each.squared_error > bound + 1e-9) continue;
    fewest = std::min(fewest,
                      each.bytes + fewest_bytes(tensors, bound - each.squared_error, tensor + 1));
  }
  return fewest;
}

LayerwiseAnswer answer_of(const Tensors& tensors, double bound, uint64_t slice = UINT64_MAX) {
  auto search = Layerwise::create(tensors, bound);
  EXPECT_TRUE(search.ok()) << search.status().to_string();
  while (!search->work(slice)) {
  }
  return search->answer();
}

void expect_consistent(const Tensors& tensors, const LayerwiseAnswer& answer, double bound) {
  double error = 0;
  uint64_t bytes = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    error += tensors[t][answer.choices[t]].squared_error;
    bytes += tensors[t][answer.choices[t]].bytes;
  }
  EXPECT_EQ(bytes, answer.bytes);
  EXPECT_NEAR(error, answer.squared_error, 1e-9 * error);
  EXPECT_LE(error, bound * (1 + 1e-9));
}

TEST(Layerwise, EqualsBruteForce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const Tensors tensors = random_tensors(random, 1 + random() % 7, 5);
    const double bound = uniform_error(tensors, 2) * (0.3 + 0.01 * (random() % 300));
    auto search = Layerwise::create(tensors, bound);
    if (!search.ok()) {
      EXPECT_GT(uniform_error(tensors, 3), bound);
      continue;
    }
    search->work(UINT64_MAX);
    const LayerwiseAnswer answer = search->answer();
    EXPECT_TRUE(answer.exact);
    EXPECT_EQ(answer.bytes, fewest_bytes(tensors, bound)) << "round " << round;
    expect_consistent(tensors, answer, bound);
  }
}

TEST(Layerwise, SendsFewerBytesThanFourBitsForTheSameError) {
  std::mt19937 random(5);
  const Tensors tensors = random_tensors(random, 314);
  const double bound = uniform_error(tensors, 2);
  const LayerwiseAnswer answer = answer_of(tensors, bound);
  EXPECT_FALSE(answer.exact);  // bounded, and still within the error
  expect_consistent(tensors, answer, bound);
  EXPECT_LT(static_cast<double>(answer.bytes),
            0.95 * static_cast<double>(uniform_bytes(tensors, 2)));
}

// Between tensors that are alike nothing is to be gained.
TEST(Layerwise, IsUniformWhereTensorsAreAlike) {
  std::mt19937 random(7);
  const Tensors tensors(6, random_tensors(random, 1)[0]);
  const LayerwiseAnswer answer = answer_of(tensors, uniform_error(tensors, 2));
  EXPECT_LE(answer.bytes, uniform_bytes(tensors, 2));
  expect_consistent(tensors, answer, uniform_error(tensors, 2));
}

TEST(Layerwise, GivesTheSameHoweverTheSearchIsSliced) {
  std::mt19937 random(9);
  const Tensors tensors = random_tensors(random, 30);
  const double bound = uniform_error(tensors, 2);
  EXPECT_EQ(answer_of(tensors, bound).choices, answer_of(tensors, bound, 1).choices);
  auto search = Layerwise::create(tensors, bound);
  EXPECT_FALSE(search->work(1));
}

TEST(Layerwise, NamesABoundThatNothingMeets) {
  std::mt19937 random(11);
  Tensors tensors = random_tensors(random, 5);
  const auto search = Layerwise::create(tensors, uniform_error(tensors, 6) * 0.99);
  ASSERT_FALSE(search.ok());
  EXPECT_NE(search.status().message().find("is above the bound"), std::string::npos);
  tensors[3].clear();
  EXPECT_EQ(Layerwise::create(tensors, 1e30).status().message(), "tensor 3 has no candidate");
  tensors[3] = {{10, NAN}};
  EXPECT_EQ(Layerwise::create(tensors, 1e30).status().message(),
            "tensor 3: an error that is no number");
}

// Against values that are really rounded: uniform ones in one bucket.
TEST(MaxminSquaredError, IsWhatRoundingLoses) {
  std::mt19937 random(13);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const uint32_t bits : {3u, 4u, 8u}) {
    const double steps = std::exp2(bits) - 1;
    double lost = 0;
    const int count = 100'000;
    for (int i = 0; i < count; ++i) {
      const double value = uniform(random);
      const double code = std::round((value + 1) / 2 * steps);
      lost += std::pow(code / steps * 2 - 1 - value, 2);
    }
    EXPECT_NEAR(maxmin_squared_error(4.0 * count, bits), lost, 0.02 * lost) << bits;
  }
}

}  // namespace
}  // namespace cgx::scheduler
