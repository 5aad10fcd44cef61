// Error feedback over steps whose gradients are in different units (loss scale / learning rate),
// and what is measured of the codecs' losses.
#include <cmath>

#include "scheduler/communicator/snapshot.h"
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using scheduler::CollectiveWish;

constexpr uint64_t kSteps = 8;

scheduler::Policy feedback_policy(CollectiveWish wish) {
  scheduler::Policy policy;
  policy.default_codec = {.codec = 3, .bits = 3, .flags = CodecSpec::kFeedback, .bucket = 512};
  policy.collective = wish;
  return policy;
}

// Learning rates by step: one change in the middle.
double rate_of(uint64_t step, double later) {
  return step < kSteps / 2 ? 1.0 : later;
}

enum class Told : uint8_t { kRescaledGradients, kUnits, kNothing };

// The sum over the steps of learning rate times update, of one tensor. Every third step nobody has
// the tensor.
std::vector<double> trained(CollectiveWish wish, double later, Told told) {
  Cluster cluster({.ranks_per_machine = {2, 1, 1}, .policy = feedback_policy(wish)});
  cluster.create();
  std::vector<Tensor> tensors = {{.name = "weight", .op = ReduceOp::kAvg, .elements = 20'011}};
  cluster.commit(tensors);
  std::vector<double> sum(tensors[0].elements);
  for (uint64_t step = 0; step < kSteps; ++step) {
    const double rate = rate_of(step, later);
    fill(cluster, tensors, step);
    const bool absent = step % 3 == 1;
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      Rank& rank = cluster.rank(r);
      if (told == Told::kUnits) rank.gradient_unit = 1.0 / rate;
      float* const gradient = rank.at<float>(tensors[0].offset);
      for (uint64_t i = 0; told == Told::kRescaledGradients && i < sum.size(); ++i) {
        gradient[i] *= static_cast<float>(rate);
      }
      if (!absent) {
        EXPECT_TRUE(cluster.submit(r, step, 0, tensors[0]).ok());
      }
      EXPECT_TRUE(cluster.end_step(r, step).ok());
    }
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    if (absent) continue;
    const float* const update = cluster.rank(0).at<float>(tensors[0].offset);
    const double factor = told == Told::kRescaledGradients ? 1.0 : rate;
    for (uint64_t i = 0; i < sum.size(); ++i) sum[i] += factor * update[i];
  }
  return sum;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

class Units : public ::testing::TestWithParam<CollectiveWish> {};

TEST_P(Units, MakeALearningRateActAsRescaledGradientsDo) {
  for (double later : {10.0, 0.1}) {
    const std::vector<double> rescaled = trained(GetParam(), later, Told::kRescaledGradients);
    const double told = distance(trained(GetParam(), later, Told::kUnits), rescaled);
    const double untold = distance(trained(GetParam(), later, Told::kNothing), rescaled);
    EXPECT_LT(told, 0.005) << later;
    EXPECT_GT(untold, 5 * told) << later;
  }
}

TEST_P(Units, OfAPowerOfTwoChangeNoBit) {
  EXPECT_EQ(trained(GetParam(), 8.0, Told::kUnits),
            trained(GetParam(), 8.0, Told::kRescaledGradients));
}

enum class Middle : uint8_t { kNotFinite, kDropped, kNobody };

// The first bucket of a third step's result, whatever happened to that bucket in the second.
std::vector<float> third_step(CollectiveWish wish, Middle middle, float decay) {
  scheduler::Policy policy = feedback_policy(wish);
  policy.feedback_decay = decay;
  Cluster cluster({.ranks_per_machine = {1, 1}, .policy = policy});
  cluster.create();
  std::vector<Tensor> tensors = {{.name = "weight", .op = ReduceOp::kSum, .elements = 20'011}};
  cluster.commit(tensors);
  for (uint64_t step = 0; step < 3; ++step) {
    fill(cluster, tensors, step);
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      if (step == 1 && middle == Middle::kNotFinite) {
        cluster.rank(r).at<float>(tensors[0].offset)[7] = std::nanf("");
      }
      if (step != 1 || middle != Middle::kNobody) {
        EXPECT_TRUE(cluster.submit(r, step, 0, tensors[0]).ok());
      }
      EXPECT_TRUE(cluster.end_step(r, step).ok());
    }
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    for (uint32_t r = 0; r < cluster.size() && step == 1; ++r) {
      EXPECT_TRUE(cluster.done_step(r, step, middle == Middle::kDropped).ok());
    }
  }
  const float* const result = cluster.rank(0).at<float>(tensors[0].offset);
  return {result, result + 512};
}

class Residual : public Units {};

TEST_P(Residual, OfABucketThatIsNotFiniteStays) {
  EXPECT_EQ(third_step(GetParam(), Middle::kNotFinite, 1.0f),
            third_step(GetParam(), Middle::kNobody, 1.0f));
}

TEST_P(Residual, OfATensorThatNobodyHadDoesNotDecay) {
  EXPECT_EQ(third_step(GetParam(), Middle::kNobody, 0.5f),
            third_step(GetParam(), Middle::kDropped, 0.5f));
}

INSTANTIATE_TEST_SUITE_P(Collectives, Units,
                         ::testing::Values(CollectiveWish::kScatter, CollectiveWish::kAllgather));
INSTANTIATE_TEST_SUITE_P(Collectives, Residual,
                         ::testing::Values(CollectiveWish::kScatter, CollectiveWish::kAllgather));

TEST(UnitsOfRanks, ThatDifferOnAMachineFailTheStepByName) {
  Cluster cluster({.ranks_per_machine = {1, 2}, .policy = feedback_policy(CollectiveWish::kAuto)});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  cluster.commit(tensors);
  cluster.rank(0).gradient_unit = 7.0;  // another machine may differ
  cluster.rank(1).gradient_unit = 64.0;
  cluster.rank(2).gradient_unit = 32.0;
  submit_step(cluster, tensors, 0);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(0); }));
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    const auto* ended = cluster.rank(r).find(CGX_COMPLETE_STEP, 0);
    EXPECT_EQ(static_cast<StatusCode>(ended->record.status), StatusCode::kMISMATCH);
    for (const char* part : {"gradient unit", "rank 1 declared 64", "rank 2", "32"}) {
      EXPECT_NE(ended->text.find(part), std::string::npos) << ended->text;
    }
  }
}

TEST(UnitsOfRanks, ThatAreNoUnitsOrChangeInAStepAreRefusedByValue) {
  Cluster cluster({.ranks_per_machine = {1, 1}});
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
  cluster.commit(tensors);
  const auto refused = [&](double unit) {
    cluster.rank(0).completions.clear();
    cluster.rank(0).gradient_unit = unit;
    EXPECT_TRUE(cluster.submit(0, 0, 0, tensors[0]).ok());
    const auto& completions = cluster.rank(0).completions;
    return completions.empty() ? std::string() : completions.back().text;
  };
  EXPECT_NE(refused(-2.5).find("-2.5 of rank 0 is not a finite number above 0"), std::string::npos);
  EXPECT_NE(refused(NAN).find("nan"), std::string::npos);
  EXPECT_NE(refused(INFINITY).find("inf"), std::string::npos);
  EXPECT_EQ(refused(3.0), "");
  const std::string changed = refused(4.0);
  EXPECT_NE(changed.find("unit 4 of rank 0 was 3"), std::string::npos) << changed;
}

scheduler::CommunicatorSnapshot shown(Cluster& cluster, uint32_t machine) {
  auto all = cluster.engine(machine).snapshot(static_cast<uint64_t>(cluster.now_ns()));
  show_plan(all.communicators.at(0));
  return all.communicators[0];
}

TEST(SentShare, IsMeasuredOfLossyTensorsInEveryPeriodsFirstStep) {
  for (CollectiveWish wish : {CollectiveWish::kScatter, CollectiveWish::kAllgather}) {
    scheduler::Policy policy = feedback_policy(wish);
    policy.stats_steps = 2;
    Cluster cluster({.ranks_per_machine = {1, 1}, .policy = policy});
    cluster.create();
    std::vector<Tensor> tensors = some_tensors(ReduceOp::kAvg);
    cluster.commit(tensors);
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 0));
    const auto first = shown(cluster, 1);
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const scheduler::TensorSnapshot& tensor = first.tensors[t];
      EXPECT_EQ(first.groups[tensor.group].collective,
                wish == CollectiveWish::kScatter ? "scatter" : "allgather");
      const double share = tensor.sent_sq / tensor.intended_sq;
      if (tensor.codec.codec == 0) {
        EXPECT_EQ(tensor.intended_sq, 0) << tensor.name;
      } else {
        EXPECT_NEAR(share, 1.0, 0.1) << tensor.name;
      }
    }
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 1));
    EXPECT_EQ(shown(cluster, 1).tensors[3].intended_sq, first.tensors[3].intended_sq);
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 2));
    EXPECT_GT(shown(cluster, 1).tensors[3].intended_sq, first.tensors[3].intended_sq);
  }
}

// Frames are here, and a tensor's residual is still being kept: what they make waits for a later
// round, which a step that was given up does not have.
TEST(Feedback, AStepThatIsGivenUpBeforeItsSumsAreMadeCanBeRedone) {
  ClusterOptions options{.policy = feedback_policy(CollectiveWish::kAllgather)};
  for (uint32_t rounds = 0; rounds < 12; ++rounds) {
    SCOPED_TRACE(std::to_string(rounds) + " rounds");
    World world({1, 1}, options, /*raw=*/false);
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    world.cluster.let_through([](uint32_t machine, const transport::Frame& frame) {
      return machine == 1 || !is_data(frame);  // or the step would be complete on machine 0 alone
    });
    fill(world.cluster, world.tensors, 1);
    submit_all(world.cluster, world.tensors, 0, 1);
    world.cluster.run_for(kSecond / 1000);
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      const bool absent = t == 3;
      const Status said =
          absent ? world.cluster.absent(1, 1, t) : world.cluster.submit(1, 1, t, world.tensors[t]);
      ASSERT_TRUE(said.ok()) << said.to_string();
    }
    world.cluster.run_rounds(rounds);
    ASSERT_TRUE(world.cluster.submit(1, 1, 0, world.tensors[0]).ok());
    world.cluster.run_for(5 * kSecond);
    world.cluster.let_through({});
    ASSERT_NO_FATAL_FAILURE(world.ask_for_redo(1));
  }
}

}  // namespace
}  // namespace cgx::sim
