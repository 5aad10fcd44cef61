// Both collectives on simulated clusters, with every codec: equal bits on all ranks, and
// allgather's are those of one encoding per machine, whatever the grouping, the chunks and the
// faults.
#include <cstring>

#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "scheduler/planners/planner.h"
#include "tests/scheduler/exchange/every_codec.h"
#include "tests/sim/training.h"

namespace cgx::sim {
namespace {

using scheduler::CollectiveWish;
using scheduler::TensorDesc;
using scheduler::TensorTable;

constexpr uint64_t kArenaBytes = 4 << 20;

// One tensor fills several chunks, more than any window.
std::vector<Tensor> tensors_with_a_wide_one() {
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  tensors.push_back({.name = "wide.weight", .op = ReduceOp::kAvg, .elements = 600'007});
  return tensors;
}

void expect_equal_on_all_ranks(Cluster& cluster, const std::vector<Tensor>& tensors) {
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    for (uint32_t r = 1; r < cluster.size(); ++r) {
      ASSERT_EQ(0, std::memcmp(cluster.rank(0).at<float>(tensors[t].offset),
                               cluster.rank(r).at<float>(tensors[t].offset),
                               tensors[t].elements * sizeof(float)))
          << "rank " << r << " tensor " << tensors[t].name;
    }
  }
}

class GatheringAmongFaults : public ::testing::TestWithParam<std::vector<uint32_t>> {};

class Gathering : public ::testing::TestWithParam<std::vector<uint32_t>> {};

TEST_P(Gathering, GivesTheReferenceBitsOfRawTensorsInManyChunks) {
  ClusterOptions options{.ranks_per_machine = GetParam(), .policy = raw_policy()};
  options.policy.collective = CollectiveWish::kAllgather;
  options.arena_bytes = kArenaBytes;
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors = tensors_with_a_wide_one();
  cluster.commit(tensors);
  for (uint64_t step = 0; step < 2; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
    ASSERT_NO_FATAL_FAILURE(expect_reference(cluster, tensors, GetParam(), step));
  }
}

TEST_P(GatheringAmongFaults, GivesTheReferenceBits) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ClusterOptions options{.ranks_per_machine = GetParam(), .policy = raw_policy()};
    options.policy.collective = CollectiveWish::kAllgather;
    options.policy.group_bytes = 1 << 20;
    options.arena_bytes = kArenaBytes;
    options.faults = {.seed = seed, .duplicate = 0.05, .delay = 0.05};
    options.faults.delay_ns_max = 5'000'000;
    Cluster cluster(options);
    cluster.create();
    std::vector<Tensor> tensors = tensors_with_a_wide_one();
    cluster.commit(tensors);
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 0)) << "seed " << seed;
    ASSERT_NO_FATAL_FAILURE(expect_reference(cluster, tensors, GetParam(), 0)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatheringAmongFaults,
                         ::testing::Values(std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{2, 1},
                                           std::vector<uint32_t>{1, 3, 2},
                                           std::vector<uint32_t>{1, 1, 1, 1}));

INSTANTIATE_TEST_SUITE_P(Shapes, Gathering,
                         ::testing::Values(std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{2, 1},
                                           std::vector<uint32_t>{1, 3, 2},
                                           std::vector<uint32_t>{1, 1, 1, 1},
                                           std::vector<uint32_t>(9, 1)));

// What allgather must give: each machine's whole tensor encoded at once, all of them combined.
class Reference {
 public:
  Reference(const std::vector<Tensor>& tensors, std::vector<uint32_t> shape,
            const scheduler::Policy& policy)
      : tensors_(tensors),
        decay_(policy.feedback_decay),
        shape_(std::move(shape)),
        policy_(policy),
        decisions_(*scheduler::Decisions::create(policy, described(tensors))) {
    residuals_.resize(shape_.size());
    for (auto& machine : residuals_) {
      for (const Tensor& tensor : tensors_) machine.emplace_back(tensor.elements);
    }
  }

  CodecSpec spec(uint32_t tensor) const { return decisions_->spec_of(tensor, policy_); }

  std::vector<float> step(uint64_t step, uint32_t t) {
    const uint64_t elements = tensors_[t].elements;
    std::vector<kernels::Contribution> parts(shape_.size());
    std::vector<std::vector<std::byte>> encoded(shape_.size());
    uint32_t rank = 0;
    for (uint32_t machine = 0; machine < shape_.size(); ++machine) {
      std::vector<std::vector<float>> inputs(shape_[machine], std::vector<float>(elements));
      for (auto& input : inputs) {
        for (uint64_t i = 0; i < elements; ++i) input[i] = value(step, rank, t, i);
        ++rank;
      }
      encoded[machine] = encode(inputs, step, t, machine);
      parts[machine].kind = kernels::Contribution::Kind::kEncoded;
      parts[machine].encoded = encoded[machine];
    }
    std::vector<float> result(elements);
    void* const target = result.data();
    kernels::CombineJob job{.spec = spec(t), .contributions = parts, .elements = elements};
    job.targets = &target;
    job.target_count = 1;
    kernels::RangeStats stats;
    EXPECT_TRUE(lane().combine(job, stats).ok());
    return result;
  }

 private:
  static const kernels::Lane& lane() { return **kernels::find_lane("scalar"); }
  static TensorDesc described(const Tensor& tensor) {
    return {.name = tensor.name, .elements = tensor.elements, .shape = {1, 1}};
  }
  static TensorTable described(const std::vector<Tensor>& tensors) {
    TensorTable table;
    for (const Tensor& tensor : tensors) table.push_back(described(tensor));
    return table;
  }
  static uint64_t hash(const std::string& text) {
    return wire::checksum(std::as_bytes(std::span(text)));
  }

  std::vector<std::byte> encode(const std::vector<std::vector<float>>& inputs, uint64_t step,
                                uint32_t t, uint32_t machine) {
    uint32_t ranks = 0;
    for (uint32_t count : shape_) ranks += count;
    std::vector<const void*> pointers;
    for (const auto& input : inputs) pointers.push_back(input.data());
    const uint64_t elements = tensors_[t].elements;
    std::vector<float>& residual = residuals_[machine][t];
    std::vector<float> next(residual);
    std::vector<std::byte> bytes(kernels::encoded_bytes(spec(t), DType::kF32, elements));
    kernels::EncodeJob job{.spec = spec(t), .elements = elements};
    job.source = {.ranks = pointers.data(),
                  .rank_count = static_cast<uint32_t>(pointers.size()),
                  .scale = 1.0f / static_cast<float>(ranks)};
    if (spec(t).feedback()) {
      job.source.residual_in = residual.data();
      job.source.residual_scale = decay_;
      job.residual_out = next.data();
    }
    const bool shared = kernels::find_codec(spec(t).codec)->shared_draws;
    job.key = {
        kernels::draw_stream({hash("job"), hash("world"), described(tensors_[t]).name_hash(), step,
                              shared ? 0 : scheduler::kFirstEncoding, shared ? 0 : machine}),
        0};
    job.encoded = bytes;
    kernels::RangeStats stats;
    bytes.resize(lane().encode(job, stats));
    residual = next;
    return bytes;
  }

  const std::vector<Tensor>& tensors_;
  float decay_;
  std::vector<uint32_t> shape_;
  scheduler::Policy policy_;
  scheduler::DecisionsPtr decisions_;
  std::vector<std::vector<std::vector<float>>> residuals_;  // [machine][tensor]
};

class EveryCodec : public ::testing::TestWithParam<uint8_t> {};

TEST_P(EveryCodec, GathersToTheBitsOfOneEncodingPerMachine) {
  const std::vector<uint32_t> shape = {2, 1, 1};
  for (const CodecSpec& spec : scheduler::every_codec(GetParam())) {
    scheduler::Policy policy;
    policy.default_codec = spec;
    policy.collective = CollectiveWish::kAllgather;
    policy.feedback_decay = 0.75f;
    policy.stats_steps = 2;
    Cluster cluster({.ranks_per_machine = shape, .policy = policy, .arena_bytes = kArenaBytes});
    cluster.create();
    std::vector<Tensor> tensors = tensors_with_a_wide_one();
    cluster.commit(tensors);
    Reference reference(tensors, shape, policy);
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step)) << kernels::to_string(spec);
      ASSERT_NO_FATAL_FAILURE(expect_equal_on_all_ranks(cluster, tensors))
          << kernels::to_string(spec);
      for (uint32_t t = 0; t < tensors.size(); ++t) {
        const std::vector<float> expected = reference.step(step, t);
        if (expected.empty()) continue;
        ASSERT_EQ(0, std::memcmp(expected.data(), cluster.rank(0).at<float>(tensors[t].offset),
                                 expected.size() * sizeof(float)))
            << kernels::to_string(spec) << " step " << step << " tensor " << tensors[t].name;
      }
    }
  }
}

TEST_P(EveryCodec, GivesAllRanksTheSameBitsOnAnyCollective) {
  for (const std::vector<uint32_t>& shape : {std::vector<uint32_t>{1, 2}, {1, 1, 1, 1, 1}}) {
    for (const CodecSpec& spec : scheduler::every_codec(GetParam())) {
      for (CollectiveWish wish : {CollectiveWish::kAuto, CollectiveWish::kScatter}) {
        scheduler::Policy policy;
        policy.default_codec = spec;
        policy.collective = wish;
        policy.stats_steps = 1;
        Cluster cluster({.ranks_per_machine = shape, .policy = policy, .arena_bytes = kArenaBytes});
        cluster.create();
        std::vector<Tensor> tensors = tensors_with_a_wide_one();
        cluster.commit(tensors);
        for (uint64_t step = 0; step < 2; ++step) {
          ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step)) << kernels::to_string(spec);
          ASSERT_NO_FATAL_FAILURE(expect_equal_on_all_ranks(cluster, tensors))
              << kernels::to_string(spec);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, EveryCodec,
                         ::testing::Values(uint8_t{0}, uint8_t{CodecSpec::kStochastic},
                                           uint8_t{CodecSpec::kFeedback}));

}  // namespace
}  // namespace cgx::sim
