// Equal runs under one plan history give equal bits, whatever order gradients come in.
#include <cstring>

#include "tests/sim/epoch_log.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

class History final : public EpochLog {
 public:
  void looked_at(const scheduler::PlanRemark& remark) override {
    ADD_FAILURE() << "nobody searches: " << remark.note.name;
  }
  // Through its file's text, as a daemon keeps it.
  std::shared_ptr<const std::vector<scheduler::PlanEntry>> read() const {
    std::string text(scheduler::kPlanHistoryHead);
    for (const scheduler::PlanEntry& entry : entries) text += format_plan_entry(entry);
    auto parsed = scheduler::parse_plan_history(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return std::make_shared<const std::vector<scheduler::PlanEntry>>(*std::move(parsed));
  }
};

scheduler::Policy lossy(const char* codec, uint64_t group_bytes) {
  const Result<CodecSpec> spec = kernels::parse_codec_spec(codec);
  EXPECT_TRUE(spec.ok()) << codec;
  scheduler::Policy policy;
  policy.default_codec = *spec;
  policy.group_bytes = group_bytes;
  policy.min_elements = 0;
  return policy;
}

// Steps from..to in registration order, or, `forward` false, the other way round. The results.
std::vector<float> play(World& world, uint64_t from, uint64_t to, bool forward) {
  std::vector<float> results;
  for (uint64_t step = from; step < to; ++step) {
    fill(world.cluster, world.tensors, step);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      for (uint32_t i = 0; i < world.tensors.size(); ++i) {
        const auto last = static_cast<uint32_t>(world.tensors.size() - 1);
        const uint32_t t = forward ? i : last - i;
        EXPECT_TRUE(world.cluster.submit(r, step, t, world.tensors[t]).ok());
      }
      EXPECT_TRUE(world.cluster.end_step(r, step).ok());
    }
    EXPECT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(step); }));
    for (const Tensor& tensor : world.tensors) {
      const float* const data = world.cluster.rank(0).at<float>(tensor.offset);
      results.insert(results.end(), data, data + tensor.elements);
    }
  }
  return results;
}

void apply(World& world, const scheduler::Policy& policy, StatusCode expected,
           bool dry_run = false) {
  StatusCode code = StatusCode::kINTERNAL;
  world.cluster.engine(0).apply_policy(
      {.job = "job", .policy = policy, .dry_run = dry_run},
      [&](const Result<scheduler::PolicyChange>& change) { code = change.status().code(); });
  EXPECT_TRUE(world.cluster.run_until([&] { return code != StatusCode::kINTERNAL; }));
  EXPECT_EQ(code, expected);
}

TEST(PlanHistory, GivesTheSameBitsWhateverOrderGradientsComeIn) {
  History recorded;
  std::vector<float> first;
  const scheduler::Policy start = lossy("maxmin:4,bucket=512", 16 * 1024);
  const scheduler::Policy later = lossy("maxmin:2,bucket=64", 64 * 1024);
  {
    World world({2, 1, 1}, {.policy = start, .plans = &recorded}, /*raw=*/false);
    first = play(world, 0, 5, /*forward=*/true);  // the planner turns the order round
    apply(world, later, StatusCode::kOK);
    const std::vector<float> rest = play(world, 5, 9, true);
    first.insert(first.end(), rest.begin(), rest.end());
  }
  ASSERT_EQ(recorded.entries.size(), 3u) << "committed, reordered, changed by an operator";
  History again;
  World world({2, 1, 1}, {.policy = later, .plans = &again, .plan_history = recorded.read()},
              false);
  const std::vector<float> second = play(world, 0, 9, /*forward=*/false);
  ASSERT_EQ(second.size(), first.size());
  EXPECT_EQ(std::memcmp(second.data(), first.data(), first.size() * sizeof(float)), 0);
  ASSERT_EQ(again.entries.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again.entries[i].step, recorded.entries[i].step);
    EXPECT_EQ(again.entries[i].plan.hash(), recorded.entries[i].plan.hash());
  }
  apply(world, start, StatusCode::kBUSY);
}

TEST(PlanHistory, TellsWhoWantedEachPlanOnEveryMachine) {
  const auto origins_on = [](World& world, uint32_t machine) {
    std::vector<std::string> said;
    const scheduler::Snapshot snapshot = world.cluster.engine(machine).snapshot(0);
    for (const auto& one : snapshot.communicators[0].switches) {
      said.push_back(one.origin.who + ": " + one.origin.why);
    }
    return said;
  };
  const scheduler::Policy start = lossy("maxmin:4,bucket=512", 16 * 1024);
  scheduler::Policy later = lossy("maxmin:2,bucket=64", 64 * 1024);
  later.note = {.by = "alice", .reason = "fewer bits"};
  const std::vector<std::string> expected = {
      "commit: the ranks committed their tensors",
      "reorder: gradients come in another order than was planned for",
      "policy: alice: fewer bits",
  };
  History recorded;
  World world({2, 1, 1}, {.policy = start, .plans = &recorded}, /*raw=*/false);
  (void)play(world, 0, 5, /*forward=*/true);
  apply(world, later, StatusCode::kOK);
  (void)play(world, 5, 9, true);
  for (const uint32_t machine : {0u, 1u, 2u}) EXPECT_EQ(origins_on(world, machine), expected);
  const auto history = recorded.read();
  std::vector<std::string> kept;
  for (const auto& entry : *history) kept.push_back(entry.origin.who + ": " + entry.origin.why);
  EXPECT_EQ(kept, expected);
  World second({2, 1, 1}, {.policy = later, .plan_history = history}, false);
  (void)play(second, 0, 9, true);
  EXPECT_EQ(origins_on(second, 1)[1],
            "history: repeats a plan history, by reorder then: gradients come in another order "
            "than was planned for");
}

// Plans of steps that follow each other, and of some with others between: more than may be
// announced at once.
TEST(PlanHistory, MayHaveAnyNumberOfPlans) {
  constexpr uint64_t kPlans = 24;
  const auto play_all = [&](World& world, bool changes) {
    std::vector<float> results = play(world, 0, 4, true);
    uint64_t step = 4;
    for (uint64_t i = 0; i < kPlans; ++i) {
      const scheduler::Policy next =
          lossy(i % 2 == 0 ? "maxmin:2,bucket=64" : "maxmin:3", (16 + i) * 1024);
      if (changes) apply(world, next, StatusCode::kOK);
      const uint64_t end = step + 1 + i % 3;
      const std::vector<float> part = play(world, step, end, true);
      results.insert(results.end(), part.begin(), part.end());
      step = end;
    }
    return results;
  };
  const scheduler::Policy start = lossy("maxmin:4,bucket=512", 16 * 1024);
  History recorded, again;
  World first({1, 1}, {.policy = start, .plans = &recorded}, /*raw=*/false);
  const std::vector<float> results = play_all(first, true);
  ASSERT_GE(recorded.entries.size(), kPlans);
  World second({1, 1}, {.policy = start, .plans = &again, .plan_history = recorded.read()}, false);
  const std::vector<float> repeated = play_all(second, false);
  ASSERT_EQ(repeated.size(), results.size());
  EXPECT_EQ(std::memcmp(repeated.data(), results.data(), results.size() * sizeof(float)), 0);
  ASSERT_EQ(again.entries.size(), recorded.entries.size());
  for (size_t i = 0; i < again.entries.size(); ++i) {
    EXPECT_EQ(again.entries[i].step, recorded.entries[i].step) << i;
  }
}

TEST(PlanHistory, IsNotDisturbedByDryRuns) {
  const scheduler::Policy start = lossy("maxmin:4,bucket=512", 16 * 1024);
  const scheduler::Policy later = lossy("maxmin:2,bucket=64", 64 * 1024);
  History recorded, again;
  World first({1, 1}, {.policy = start, .plans = &recorded}, /*raw=*/false);
  std::vector<float> results = play(first, 0, 6, true);
  apply(first, later, StatusCode::kOK);
  const std::vector<float> rest = play(first, 6, 9, true);
  results.insert(results.end(), rest.begin(), rest.end());
  World second({1, 1}, {.policy = start, .plans = &again, .plan_history = recorded.read()}, false);
  for (int i = 0; i < 4; ++i) apply(second, later, StatusCode::kBUSY, /*dry_run=*/true);
  const std::vector<float> repeated = play(second, 0, 9, true);
  ASSERT_EQ(repeated.size(), results.size());
  EXPECT_EQ(std::memcmp(repeated.data(), results.data(), results.size() * sizeof(float)), 0);
  EXPECT_EQ(again.entries.size(), recorded.entries.size());
}

// Each communicator of a name repeats its own plans, also where it begins at the same step.
TEST(PlanHistory, EachCommunicatorOfANameRepeatsItsOwn) {
  const auto begin_again = [](World& world, uint64_t step) {
    EXPECT_TRUE(world.cluster.create_again(step));
    world.cluster.commit(world.tensors);
    EXPECT_EQ(world.cluster.rank(0).replies[Cluster::kCommit].message, "");
  };
  const scheduler::Policy start = lossy("maxmin:4,bucket=512", 16 * 1024);
  const auto play_all = [&](World& world, bool changes) {
    std::vector<float> results;
    for (const uint64_t first : {0, 0, 7}) {
      if (!results.empty()) begin_again(world, first);
      const scheduler::Policy later = lossy(results.empty() ? "maxmin:2" : "maxmin:3", 64 * 1024);
      std::vector<float> part = play(world, first, first + 3, true);
      if (changes) apply(world, later, StatusCode::kOK);
      results.insert(results.end(), part.begin(), part.end());
      part = play(world, first + 3, first + 6, true);
      results.insert(results.end(), part.begin(), part.end());
    }
    return results;
  };
  History recorded, again;
  World first({1, 1}, {.policy = start, .plans = &recorded}, /*raw=*/false);
  const std::vector<float> results = play_all(first, true);
  World second({1, 1}, {.policy = start, .plans = &again, .plan_history = recorded.read()}, false);
  const std::vector<float> repeated = play_all(second, false);
  ASSERT_EQ(repeated.size(), results.size());
  EXPECT_EQ(std::memcmp(repeated.data(), results.data(), results.size() * sizeof(float)), 0);
  EXPECT_EQ(again.entries.size(), recorded.entries.size());
}

TEST(PlanHistory, OfAnotherTableIsRefusedByName) {
  History recorded;
  { World world({1, 1}, {.plans = &recorded}); }
  ClusterOptions options;
  options.ranks_per_machine = {1, 1};
  options.plan_history = recorded.read();
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors = some_tensors(ReduceOp::kSum);
  tensors.pop_back();
  cluster.commit(tensors);
  for (uint32_t r = 0; r < 2; ++r) {
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, StatusCode::kMISMATCH);
    EXPECT_NE(reply.message.find("plan history"), std::string::npos) << reply.message;
  }
}

}  // namespace
}  // namespace cgx::sim
