// What daemons say has decided a tensor's codec, where neither the policy's default nor a rule has.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/planners/proposal.h"
#include "tests/sim/epoch_log.h"
#include "tests/sim/layers.h"

namespace cgx::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSearch[] = "mode auto: as its search has it now";

scheduler::Policy searched_policy() {
  scheduler::Policy policy;
  policy.mode = scheduler::PlanMode::kAuto;
  policy.group_bytes = 32 * 1024;
  policy.stats_steps = policy.replica_check_steps = 0;
  return policy;
}

ClusterOptions over_a_slow_link(const scheduler::Policy& policy) {
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::default_menu()) {
    costs->codecs.push_back({spec, {0, 0.01}, {0, 0.01}});
  }
  return {.ranks_per_machine = {1, 1, 1},
          .policy = policy,
          .port_bytes_per_second = 2'000'000,
          .costs = costs};
}

// Six layers, every other one a thousand times as loud; one may have gradients that are no numbers.
struct ExplainedJob {
  explicit ExplainedJob(const ClusterOptions& options) : cluster(options) {
    cluster.create();
    cluster.commit(tensors);
  }
  void play_step() {
    for (uint32_t r = 0; r < cluster.size(); ++r) {
      fill_loud(cluster, tensors, r, step);
      if (broken < tensors.size()) {
        std::fill_n(cluster.rank(r).at<float>(tensors[broken].offset), tensors[broken].elements,
                    std::numeric_limits<float>::infinity());
      }
      submit_all(cluster, tensors, r, step);
    }
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step); }));
    ++step;
  }
  void play(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) ASSERT_NO_FATAL_FAILURE(play_step());
  }
  scheduler::CommunicatorSnapshot shown(uint32_t machine = 0) {
    return shown_whole(cluster, machine);
  }
  std::string reason(uint32_t tensor, uint32_t machine = 0) {
    return shown(machine).tensors[tensor].reason;
  }
  Cluster cluster;
  std::vector<Tensor> tensors = six_layers();
  uint64_t step = 0;
  uint32_t broken = UINT32_MAX;
};

TEST(Reasons, NameTheSearch) {
  ExplainedJob job(over_a_slow_link(searched_policy()));
  ASSERT_EQ(job.shown().tensors[1].codec.codec, 0) << "at first nothing is compressed";
  EXPECT_EQ(job.reason(1), kSearch);
  EXPECT_THAT(job.reason(1, 1), HasSubstr("machine 0 knows which")) << "guards may have done it";
}

TEST(Reasons, NameAnEarlierRunUntilTheSearchKeepsAnotherPlan) {
  const auto begun = ExplainedJob(over_a_slow_link(searched_policy())).shown();
  auto kept = std::make_shared<scheduler::KeptProfiles>();
  kept->keep({0, "job", "world"}, {.table_hash = begun.plan->plan.table_hash,
                                   .machines = 3,
                                   .policy = searched_policy(),
                                   .groups = begun.plan->plan.groups});
  ClusterOptions options = over_a_slow_link(searched_policy());
  options.profiles = kept;
  ExplainedJob job(options);
  for (const uint32_t machine : {0u, 1u}) {
    EXPECT_EQ(job.reason(1, machine), "kept: an earlier run of this name found it the fastest");
  }
  ASSERT_NO_FATAL_FAILURE(job.play(100));
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.reason(1), "default") << "the search has kept the policy's codec";
}

TEST(Reasons, NameCeilingsUnderModeAuto) {
  scheduler::Policy policy = searched_policy();
  policy.default_codec = {.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};
  policy.ceilings = scheduler::CeilingPlanner::klayerwise;
  ExplainedJob job(over_a_slow_link(policy));
  EXPECT_EQ(job.reason(1), kSearch);
  ASSERT_NO_FATAL_FAILURE(job.play(100));
  ASSERT_NE(job.shown().tensors[1].codec.codec, 0);
  ASSERT_LT(job.shown().tensors[1].codec.bits, 4);
  EXPECT_EQ(job.reason(1), "ceilings: layerwise");
  EXPECT_THAT(job.reason(1, 2), HasSubstr("machine 0 knows which"));
}

TEST(Reasons, NameAGuard) {
  scheduler::Policy policy = searched_policy();
  policy.stats_steps = 4;
  ExplainedJob job(over_a_slow_link(policy));
  for (int i = 0; i < 400 && job.shown().searching != "settled"; ++i) {
    ASSERT_NO_FATAL_FAILURE(job.play_step());
  }
  ASSERT_EQ(job.reason(2), "default");
  job.broken = 2;
  for (int i = 0; i < 200 && job.reason(2) == "default"; ++i) {
    ASSERT_NO_FATAL_FAILURE(job.play_step());
  }
  EXPECT_THAT(job.reason(2), StartsWith("guard: hurt by maxmin:4"));
  EXPECT_EQ(job.reason(1), "default");
}

TEST(Reasons, NameAHistoryThatIsRepeated) {
  EpochLog recorded;
  ClusterOptions options = over_a_slow_link(searched_policy());
  options.plans = &recorded;
  ASSERT_NO_FATAL_FAILURE(ExplainedJob(options).play(3));
  ASSERT_FALSE(recorded.entries.empty());
  options.plans = nullptr;
  options.plan_history =
      std::make_shared<const std::vector<scheduler::PlanEntry>>(recorded.entries);
  EXPECT_THAT(ExplainedJob(options).reason(1), StartsWith("history: repeats a plan history"));
}

}  // namespace
}  // namespace cgx::sim
