// Machines of a rack send what they add there with a codec of its own, and everything else with
// that of the tensors: what travels where, what it is worth, and where its errors stay.
#include <cmath>
#include <map>
#include <optional>

#include "kernels/floats.h"
#include "tests/sim/frames.h"
#include "tests/sim/reference.h"
#include "tests/sim/training.h"

namespace cgx::sim {
namespace {

constexpr uint32_t kMachines = 4, kRack = 2;
constexpr uint64_t kElements = 32'768;  // a shard is one part
constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};
constexpr CodecSpec kEightBits{.codec = 3, .bits = 8, .bucket = 512};
constexpr CodecSpec kThreeBits{.codec = 3, .bits = 3, .bucket = 512};

scheduler::Policy policy_of(const CodecSpec& codec, std::optional<CodecSpec> rack_codec = {}) {
  scheduler::Policy policy;
  policy.default_codec = codec;
  policy.collective = scheduler::CollectiveWish::kTwoLevel;
  policy.rack_machines = kRack;
  policy.rack_codec = rack_codec;
  return policy;
}

std::vector<Tensor> one_tensor() {
  return {{.name = "weight", .elements = kElements, .shape = {64, 512}}};
}

CodecSpec with_feedback(CodecSpec spec) {
  spec.flags |= CodecSpec::kFeedback;
  return spec;
}

// Bytes of data frames' payloads, by whether they stay in their rack, and round.
using Traffic = std::map<std::pair<bool, uint32_t>, uint64_t>;

struct Run {
  std::vector<float> result;        // of the last step
  std::vector<double> sum;          // of all
  std::vector<double> contributed;  // of one step
  Traffic bytes;                    // of all
};

// Every step's gradients are the same.
Run run(const scheduler::Policy& policy, uint64_t steps = 1) {
  Run run{.result = {}, .sum = std::vector<double>(kElements), .contributed = {}, .bytes = {}};
  Cluster cluster({.ranks_per_machine = std::vector<uint32_t>(kMachines, 1), .policy = policy});
  cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (!is_data(frame)) return;
    const wire::FrameHeader header = header_of(frame);
    const bool near = header.source / kRack == machine / kRack;
    run.bytes[{near, header.round}] += frame.payload.size();
  });
  cluster.create();
  std::vector<Tensor> tensors = one_tensor();
  cluster.commit(tensors);
  for (uint64_t step = 0; step < steps; ++step) {
    fill(cluster, tensors, 0);
    for (uint32_t r = 0; r < kMachines; ++r) submit_all(cluster, tensors, r, step);
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    expect_agreement(cluster, tensors);
    const float* const result = cluster.rank(0).at<float>(tensors[0].offset);
    for (uint64_t i = 0; i < kElements; ++i) run.sum[i] += result[i];
    run.result.assign(result, result + kElements);
  }
  for (uint64_t i = 0; i < kElements; ++i) {
    double sum = 0;
    for (uint32_t r = 0; r < kMachines; ++r) sum += value(0, r, 0, i);
    run.contributed.push_back(sum);
  }
  return run;
}

// Of what all steps gave from what they should have, as a share of one step's.
double error_of(const Run& run, uint64_t steps = 1) {
  double error = 0, size = 0;
  for (uint64_t i = 0; i < kElements; ++i) {
    const double off = run.sum[i] - static_cast<double>(steps) * run.contributed[i];
    error += off * off;
    size += run.contributed[i] * run.contributed[i];
  }
  return std::sqrt(error / size);
}

uint64_t shard_bytes(const CodecSpec& spec) {
  return scheduler::align_range(kernels::encoded_bytes(spec, DType::kF32, kElements / kMachines));
}

TEST(RackCodec, IsOfWhatIsAddedWithinARackAndOfNothingElse) {
  for (const CodecSpec& rack_codec : {kRaw, kEightBits}) {
    // Each machine sends its neighbour two shards to add, its twin a sum and a result, and its
    // neighbour its own result and its twin's.
    const uint64_t sums = 2 * kMachines * shard_bytes(rack_codec);
    const uint64_t others = kMachines * shard_bytes(kThreeBits);
    const Traffic expected = {{{true, 1}, sums},
                              {{false, 2}, others},
                              {{false, 3}, others},
                              {{true, 3}, others},
                              {{true, 4}, others}};
    EXPECT_EQ(run(policy_of(kThreeBits, rack_codec)).bytes, expected)
        << kernels::to_string(rack_codec);
  }
}

// What is left are the errors of the racks' sums and of results, whose range is two and four times
// as wide.
TEST(RackCodec, LosesLessThanTheTensorsOwn) {
  const double same = error_of(run(policy_of(kThreeBits)));
  const double eight = error_of(run(policy_of(kThreeBits, kEightBits)));
  const double raw = error_of(run(policy_of(kThreeBits, kRaw)));
  EXPECT_LT(eight, 0.93 * same);
  EXPECT_LT(raw, 0.93 * same);
  EXPECT_NEAR(eight, raw, 0.01 * raw);
}

TEST(RackCodec, ThatCompressesMoreThanTheTensorsOwnIsNotTaken) {
  const std::vector<float> own = run(policy_of(kEightBits)).result;
  EXPECT_EQ(run(policy_of(kEightBits, kThreeBits)).result, own);
  EXPECT_EQ(run(policy_of(kEightBits, kEightBits)).result, own);
}

// Feedback is the tensor's: it keeps the errors of both codecs, each on the machine that made it.
TEST(RackCodec, LeavesItsErrorsToTheTensorsFeedback) {
  constexpr uint64_t kSteps = 24;
  const CodecSpec kept = with_feedback(kThreeBits);
  for (const CodecSpec& rack_codec : {kRaw, kEightBits}) {
    const double once = error_of(run(policy_of(kept, rack_codec)));
    const double all = error_of(run(policy_of(kept, rack_codec), kSteps), kSteps);
    EXPECT_LT(all, 4 * once) << "what is not sent does not add up: "
                             << kernels::to_string(rack_codec);
    const double lost = error_of(run(policy_of(kThreeBits, rack_codec), kSteps), kSteps);
    EXPECT_GT(lost, 0.9 * kSteps * once) << kernels::to_string(rack_codec);
  }
}

// A lossy one on top of an exact sum: only its own errors are left, and they go.
TEST(RackCodec, KeepsTheErrorsOfTheRacksCodecToo) {
  constexpr uint64_t kSteps = 24;
  constexpr CodecSpec kFewest{.codec = 3, .bits = 4, .bucket = 64};
  CodecSpec fewer{.codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
  const double once = error_of(run(policy_of(fewer, kFewest)));
  const double all = error_of(run(policy_of(fewer, kFewest), kSteps), kSteps);
  EXPECT_LT(all, 4 * once);
}

// What cluster and reference make of the same gradients in steps under one plan.
void expect_reference_bits(Cluster& cluster, const scheduler::PlanFacts& facts, uint64_t steps) {
  const uint32_t machines = cluster.size();
  std::vector<Tensor> tensors = one_tensor();
  Reference reference(std::vector<uint32_t>(machines, 1), "job", "world");
  reference.learn(facts.plan);
  for (uint64_t step = 0; step < steps; ++step) {
    fill(cluster, tensors, step);
    Reference::Step about{.number = step,
                          .epoch = facts.plan.epoch,
                          .units = std::vector<double>(machines, 1.0),
                          .inputs = {{}},
                          .present = {std::vector<bool>(machines, true)}};
    for (uint32_t r = 0; r < machines; ++r) {
      const auto* const input = cluster.rank(r).at<std::byte>(tensors[0].offset);
      about.inputs[0].emplace_back(input, input + kElements * sizeof(float));
    }
    for (uint32_t r = 0; r < machines; ++r) submit_all(cluster, tensors, r, step);
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    expect_agreement(cluster, tensors);
    const Bytes expected = reference.run(*facts.table, about).at(0);
    const auto* const result = cluster.rank(0).at<std::byte>(tensors[0].offset);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result)) << "step " << step;
    reference.close(/*dropped=*/false);
  }
}

// Random draws are named by the buckets of the codec that draws, which here are an eighth of the
// tensor's: if by the tensor's, parts would draw alike.
TEST(RackCodec, DrawsByItsOwnBucketsAsTheReferenceDoes) {
  CodecSpec drawn = kThreeBits, in_racks{.codec = 3, .bits = 6, .bucket = 192};
  drawn.flags = in_racks.flags = CodecSpec::kStochastic;
  for (const uint32_t rack : {2u, 3u}) {
    SCOPED_TRACE("racks of " + std::to_string(rack));
    ClusterOptions options{.ranks_per_machine = std::vector<uint32_t>(2 * rack, 1),
                           .policy = policy_of(drawn, in_racks)};
    options.policy.rack_machines = rack;
    Cluster cluster(options);
    cluster.create();
    std::vector<Tensor> tensors = one_tensor();
    cluster.commit(tensors);
    const auto facts = cluster.engine(0).snapshot(0).communicators.at(0).plan;
    ASSERT_TRUE(facts->rack_spec_of(0).has_value());
    ASSERT_EQ(facts->rack_spec_of(0)->bucket, 64u) << "what divides both";
    expect_reference_bits(cluster, *facts, 2);
  }
}

// Of limits.plan_bytes: the values of one other machine, a shard's at a time.
TEST(RackCodec, CountsTheMemoryThatValuesAreDecodedIn) {
  const auto reserved = [](std::optional<CodecSpec> rack_codec) {
    Cluster cluster({.ranks_per_machine = std::vector<uint32_t>(kMachines, 1),
                     .policy = policy_of(kThreeBits, rack_codec)});
    cluster.create();
    std::vector<Tensor> tensors = one_tensor();
    cluster.commit(tensors);
    return cluster.engine(0).snapshot(0).communicators.at(0).reserved_bytes;
  };
  EXPECT_EQ(reserved(kEightBits) - reserved({}), kElements / kMachines * sizeof(float));
}

// The first rack's sum alone is more than fp16 holds.
TEST(RackSums, MayBeLargerThanTheTensorsTypeHolds) {
  const float values[kMachines] = {60'000, 10'000, -30'000, 0};
  for (const CodecSpec& codec : {kRaw, kEightBits}) {
    Cluster cluster(
        {.ranks_per_machine = std::vector<uint32_t>(kMachines, 1), .policy = policy_of(codec)});
    cluster.create();
    std::vector<Tensor> tensors = one_tensor();
    tensors[0].dtype = DType::kF16;
    cluster.commit(tensors);
    for (uint32_t r = 0; r < kMachines; ++r) {
      auto* const data = cluster.rank(r).at<uint16_t>(tensors[0].offset);
      std::fill_n(data, kElements, kernels::to_half(values[r]));
      submit_all(cluster, tensors, r, 0);
    }
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(0); }));
    for (uint32_t r = 0; r < kMachines; ++r) {
      const auto* const result = cluster.rank(r).at<uint16_t>(tensors[0].offset);
      EXPECT_EQ(kernels::from_half(result[0]), 40'000) << kernels::to_string(codec);
      EXPECT_EQ(std::count(result, result + kElements, result[0]), kElements);
    }
  }
}

}  // namespace
}  // namespace cgx::sim
