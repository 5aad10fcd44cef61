// Second commits, and what they meet: refusals, policies, the automatic reordering (PROTOCOL 25). A
// table is in force only with the plan made from it; whatever happens, everybody is answered.
#include <optional>
#include <tuple>

#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

std::vector<Tensor> grown(const std::vector<Tensor>& tensors, uint64_t elements = 7000) {
  std::vector<Tensor> more = tensors;
  more.push_back({.name = "late.weight", .elements = elements, .shape = {}});
  return more;
}

// Registers what is new on a rank and asks for the commit.
void ask(Cluster& cluster, uint32_t rank, const std::vector<Tensor>& tensors, uint32_t first) {
  cluster.rank(rank).replies.erase(Cluster::kCommit);
  if (first < tensors.size()) cluster.register_on(rank, tensors, first);
  cluster.request_commit(rank, static_cast<uint32_t>(tensors.size()));
}

void commit_one_more(World& world) {
  const auto first = static_cast<uint32_t>(world.tensors.size());
  world.tensors = grown(world.tensors);
  world.cluster.place(world.tensors);
  for (uint32_t r = 0; r < world.cluster.size(); ++r) {
    ask(world.cluster, r, world.tensors, first);
  }
}

bool all_answered(Cluster& cluster) {
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    if (cluster.rank(r).replies.count(Cluster::kCommit) == 0) return false;
  }
  return true;
}

void expect_commits(Cluster& cluster, StatusCode code) {
  ASSERT_TRUE(cluster.run_until([&] { return all_answered(cluster); }, 10 * kSecond));
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, code) << "rank " << r << ": " << reply.message;
  }
}

using Change = std::optional<Result<scheduler::PolicyChange>>;

void apply(Cluster& cluster, uint32_t machine, const scheduler::Policy& policy, Change& change) {
  cluster.engine(machine).apply_policy({.job = "job", .policy = policy},
                                       [&change](const auto& answer) { change = answer; });
}

scheduler::Policy smaller_groups() {
  scheduler::Policy policy = raw_policy();
  policy.group_bytes = 4096;
  return policy;
}

// By shape, and by how long it takes to make a plan.
class SecondCommit : public ::testing::TestWithParam<std::tuple<std::vector<uint32_t>, int64_t>> {
 protected:
  std::vector<uint32_t> shape() const { return std::get<0>(GetParam()); }
  ClusterOptions late_plans() const {
    ClusterOptions options;
    const int64_t most = std::get<1>(GetParam());
    if (most == 0) return options;
    // Every second answer is a quick one and overtakes others.
    options.planning_ns = [most, slow = false](uint32_t) mutable {
      slow = !slow;
      return slow ? most : 1000;
    };
    return options;
  }
};

TEST_P(SecondCommit, AddsTensorsBetweenSteps) {
  World world(shape(), late_plans());
  for (uint64_t step = 0; step < 6; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    expect_reference(world.cluster, world.tensors, world.shape, step);
    if (step % 2 == 1) continue;
    const auto first = static_cast<uint32_t>(world.tensors.size());
    world.tensors = grown(world.tensors);
    world.tensors.back().name += std::to_string(step);
    world.cluster.place(world.tensors);
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      ask(world.cluster, r, world.tensors, first);
    }
    ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK));
  }
}

// The automatic reordering is proposed when the second step is complete.
TEST_P(SecondCommit, MeetsAReorderingAtAnyMoment) {
  for (uint32_t rounds = 0; rounds < 40; ++rounds) {
    World world(shape(), late_plans());
    for (uint64_t step = 0; step < 2; ++step) run_step(world.cluster, world.tensors, step);
    world.cluster.run_rounds(rounds);
    commit_one_more(world);
    ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK)) << rounds;
    for (uint64_t step = 2; step < 6; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step)) << rounds;
      ASSERT_NO_FATAL_FAILURE(expect_reference(world.cluster, world.tensors, world.shape, step));
    }
  }
}

void step_from_first_to_last(World& world, uint64_t step) {
  for (uint32_t r = 0; r < world.cluster.size(); ++r) {
    for (uint32_t t = 0; t < world.tensors.size(); ++t) {
      ASSERT_TRUE(world.cluster.submit(r, step, t, world.tensors[t]).ok());
    }
    ASSERT_TRUE(world.cluster.end_step(r, step).ok());
  }
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(step); }));
}

// Group 0 is the first to travel.
TEST(Reordering, ComesAgainBehindASecondCommit) {
  ClusterOptions options{.policy = raw_policy()};
  options.policy.group_bytes = 4096;
  World world({1, 1}, options, /*raw=*/false);
  const auto group_of_first = [&] {
    scheduler::Snapshot shown = world.cluster.engine(0).snapshot(0);
    show_plan(shown.communicators.at(0));
    return shown.communicators.at(0).tensors.at(0).group;
  };
  uint64_t step = 0;
  EXPECT_GT(group_of_first(), 0u);
  while (step < 6) ASSERT_NO_FATAL_FAILURE(step_from_first_to_last(world, step++));
  EXPECT_EQ(group_of_first(), 0u);
  commit_one_more(world);
  ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK));
  EXPECT_GT(group_of_first(), 0u);
  while (step < 12) ASSERT_NO_FATAL_FAILURE(step_from_first_to_last(world, step++));
  EXPECT_EQ(group_of_first(), 0u);
}

// A policy that is being prepared is pre-empted; the operator is told by what.
TEST_P(SecondCommit, PreemptsAPolicyAtAnyMoment) {
  const auto ranks = static_cast<uint32_t>(shape().size());
  for (uint32_t machine = 0; machine < ranks; ++machine) {
    for (uint32_t rounds = 0; rounds < 20; ++rounds) {
      SCOPED_TRACE("machine " + std::to_string(machine) + ", rounds " + std::to_string(rounds));
      World world(shape(), late_plans());
      for (uint64_t step = 0; step < 5; ++step) run_step(world.cluster, world.tensors, step);
      Change change;
      apply(world.cluster, machine, smaller_groups(), change);
      world.cluster.run_rounds(rounds);
      commit_one_more(world);
      ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK));
      ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 10 * kSecond));
      for (uint64_t step = 5; step < 9; ++step) {
        ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
        ASSERT_NO_FATAL_FAILURE(expect_reference(world.cluster, world.tensors, world.shape, step));
      }
      const uint64_t version =
          world.cluster.rank(0).find(CGX_COMPLETE_STEP, 8)->record.policy_version;
      if (change->ok()) {
        EXPECT_EQ(version, (*change)->policy_version) << "what an operator was promised comes";
      } else {
        EXPECT_EQ(version, 1u) << change->status().to_string();
        EXPECT_NE(change->status().message().find("epoch"), std::string::npos)
            << change->status().to_string();
      }
      for (uint32_t r = 0; r < world.cluster.size(); ++r) {
        EXPECT_EQ(world.cluster.rank(r).find(CGX_COMPLETE_STEP, 8)->record.policy_version, version);
      }
    }
  }
}

// Between the members' and the coordinator's commit nobody has a new table yet.
TEST_P(SecondCommit, OfSomeRanksOnlyLeavesPoliciesToWorkOnTheOldTable) {
  World world(shape(), late_plans());
  for (uint64_t step = 0; step < 5; ++step) run_step(world.cluster, world.tensors, step);
  std::vector<Tensor> more = grown(world.tensors);
  world.cluster.place(more);
  const auto first = static_cast<uint32_t>(world.tensors.size());
  for (uint32_t r = 1; r < world.cluster.size(); ++r) ask(world.cluster, r, more, first);
  world.cluster.run_for(kSecond / 100);
  Change change;
  apply(world.cluster, 0, smaller_groups(), change);
  ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 10 * kSecond));
  EXPECT_TRUE(change->ok()) << change->status().to_string();
  ask(world.cluster, 0, more, first);
  ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK));
  for (uint64_t step = 5; step < 9; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, more, step));
    ASSERT_NO_FATAL_FAILURE(expect_reference(world.cluster, more, world.shape, step));
  }
  EXPECT_EQ(world.cluster.rank(0).find(CGX_COMPLETE_STEP, 8)->record.policy_version, 2u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SecondCommit,
                         ::testing::Combine(::testing::Values(std::vector<uint32_t>{2},
                                                              std::vector<uint32_t>{1, 1},
                                                              std::vector<uint32_t>{1, 2, 1}),
                                            ::testing::Values(0, 70'000, 100'000'000)));

// A machine whose memory is short refuses the larger table: its limit leaves room for the first
// one, asks machine 0 says too little for the second.
struct RefusedCommit : ::testing::Test {
  static ClusterOptions options() {
    ClusterOptions options{.policy = feedback()};
    options.arena_bytes = 64 << 20;
    options.limits = [](uint32_t machine) {
      scheduler::Limits limits;
      if (machine == 1) limits.plan_bytes = 64 << 20;
      return limits;
    };
    return options;
  }
  static scheduler::Policy feedback() {
    scheduler::Policy policy;
    policy.default_codec = {.codec = 3, .bits = 8, .flags = CodecSpec::kFeedback, .bucket = 512};
    return policy;
  }
  World world{{1, 1}, options(), /*raw=*/false};
  uint32_t first = static_cast<uint32_t>(world.tensors.size());

  void SetUp() override {
    ASSERT_EQ(world.cluster.rank(0).replies[Cluster::kCommit].code, StatusCode::kOK)
        << world.cluster.rank(0).replies[Cluster::kCommit].message;
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    }
    std::vector<Tensor> more = grown(world.tensors, 6'000'000);  // 48 MB of residuals
    world.cluster.place(more);
    for (uint32_t r = 0; r < 2; ++r) ask(world.cluster, r, more, first);
    ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kRESOURCE_EXHAUSTED));
    EXPECT_NE(world.cluster.rank(0).replies[Cluster::kCommit].message.find("machine 1"),
              std::string::npos)
        << world.cluster.rank(0).replies[Cluster::kCommit].message;
  }
};

TEST_F(RefusedCommit, LeavesTheOldTableAndItsSteps) {
  for (uint64_t step = 5; step < 8; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
  }
}

TEST_F(RefusedCommit, LeavesPoliciesToWork) {
  Change change;
  scheduler::Policy policy = feedback();
  policy.default_codec.bits = 4;
  apply(world.cluster, 1, policy, change);
  ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 10 * kSecond));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  uint64_t step = 5;
  for (; step < (*change)->switch_step + 1; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
  }
  EXPECT_EQ(world.cluster.rank(1).find(CGX_COMPLETE_STEP, step - 1)->record.policy_version, 2u);
}

TEST_F(RefusedCommit, MayBeAskedAgain) {
  std::vector<Tensor> more = grown(world.tensors, 6'000'000);
  world.cluster.place(more);
  for (uint32_t r = 0; r < 2; ++r) {
    ask(world.cluster, r, more, static_cast<uint32_t>(more.size()));
  }
  ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kRESOURCE_EXHAUSTED));
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 5));
}

TEST(Commit, ThatTheLastMachineToAnswerRefusesIsRefusedEverywhere) {
  ClusterOptions options = RefusedCommit::options();  // machine 1 has too little memory
  options.link_latency_ns = [](uint32_t from, uint32_t to) {
    return from == 1 && to == 0 ? 50'000'000 : 20'000;
  };
  World world({1, 1, 1}, options, /*raw=*/false);
  const auto first = static_cast<uint32_t>(world.tensors.size());
  std::vector<Tensor> more = grown(world.tensors, 6'000'000);
  world.cluster.place(more);
  for (uint32_t r = 0; r < 3; ++r) ask(world.cluster, r, more, first);
  ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kRESOURCE_EXHAUSTED));
  EXPECT_NE(world.cluster.rank(2).replies[Cluster::kCommit].message.find("machine 1"),
            std::string::npos)
      << world.cluster.rank(2).replies[Cluster::kCommit].message;
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
}

// Names are kept from the moment when they come: what is wrong or too much is refused then.
TEST(Registering, ANameThatIsTooLongEndsTheCommunicatorAtOnce) {
  Cluster cluster({.ranks_per_machine = {1}, .policy = raw_policy()});
  cluster.create();
  cluster.register_on(0, {{.name = std::string(90'000, 'a'), .elements = 3, .shape = {}}});
  EXPECT_EQ(cluster.engine(0).snapshot(0).communicators[0].state, "failed");
}

TEST(Registering, TakesAShareOfThePlansMemoryAndIsRefusedByNameBeyondIt) {
  constexpr uint64_t kPlanBytes = 16 << 20;
  const auto limits = [](uint32_t) {
    scheduler::Limits limits;
    limits.plan_bytes = kPlanBytes;
    return limits;
  };
  Cluster cluster({.ranks_per_machine = {1}, .policy = raw_policy(), .limits = limits});
  cluster.create();
  const auto reserved = [&] {
    return cluster.engine(0).snapshot(0).communicators[0].reserved_bytes;
  };
  const uint64_t before = reserved();
  std::vector<Tensor> tensors;
  const auto more = [&] {
    const auto first = static_cast<uint32_t>(tensors.size());
    for (uint32_t i = 0; i < 180; ++i) {
      std::string name = std::to_string(first + i) + std::string(500, 'a');
      tensors.push_back({.name = std::move(name), .elements = 1, .shape = {}});
    }
    cluster.register_on(0, tensors, first);
  };
  more();
  EXPECT_GE(reserved(), before + 180 * 500);
  while (tensors.size() < 2 * kPlanBytes / 500) {
    more();
    ASSERT_LE(reserved(), kPlanBytes);
  }
  cluster.request_commit(0, static_cast<uint32_t>(tensors.size()));
  const wire::Reply& refused = cluster.rank(0).replies[Cluster::kCommit];
  EXPECT_EQ(refused.code, StatusCode::kRESOURCE_EXHAUSTED) << refused.message;
  EXPECT_NE(refused.message.find("what rank 0 registers"), std::string::npos) << refused.message;
  EXPECT_NE(refused.message.find("limits.plan_bytes"), std::string::npos) << refused.message;
}

TEST(Registering, OfOneUserLeavesAReserveToOthers) {
  const auto limits = [](uint32_t) { return scheduler::Limits{.plan_bytes = 16 << 20}; };
  Cluster cluster({.ranks_per_machine = {1}, .limits = limits});
  scheduler::Engine& engine = cluster.engine(0);
  Rank process{4096};
  wire::RegisterTensors some{.comm = 7};
  for (uint32_t i = 0; i < 180; ++i) {
    some.tensors.push_back({.name = std::to_string(i) + std::string(500, 'a'), .shape = {}});
  }
  uint32_t tables = 0;
  const auto takes = [&](uint32_t uid, uint32_t pieces) {
    const auto session = engine.open_session({.job = "job", .uid = uid}, process).value();
    cluster.create_alone(0, session, "table" + std::to_string(++tables));
    for (some.first = 0; pieces > 0; --pieces, some.first += 180) {
      engine.register_tensors(session, Cluster::kRegister, some);
    }
    engine.commit(session, Cluster::kCommit, {.comm = 7, .tensors = 0});  // too few, in any case
    return process.replies.at(Cluster::kCommit).code == StatusCode::kPROTOCOL_ERROR;
  };
  EXPECT_FALSE(takes(1, 200));
  EXPECT_TRUE(takes(1, 1)) << "what was refused is not kept";
  EXPECT_TRUE(takes(1, 100));
  EXPECT_FALSE(takes(1, 100)) << "seven eighths are for one user";
  EXPECT_TRUE(takes(2, 4));
}

TEST(Commit, OfATableThatNoFrameHoldsIsRefusedWithItsSize) {
  Cluster cluster(
      {.ranks_per_machine = {1, 1}, .policy = raw_policy(), .frame_bytes_max = 4 << 20});
  cluster.create();
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < 9000; ++i) {
    std::string name(512, 'x');
    name.replace(0, 5, std::to_string(10'000 + i));
    tensors.push_back({.name = name, .elements = 1, .shape = {}});
  }
  cluster.place(tensors);
  for (uint32_t r = 0; r < 2; ++r) ask(cluster, r, tensors, 0);
  ASSERT_TRUE(cluster.run_until([&] { return all_answered(cluster); }, 10 * kSecond));
  for (uint32_t r = 0; r < 2; ++r) {
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    EXPECT_EQ(reply.code, StatusCode::kRESOURCE_EXHAUSTED) << reply.message;
    EXPECT_NE(reply.message.find("4194304"), std::string::npos) << reply.message;
  }
}

// A cluster whose machine `slow` takes its time over tables and plans.
ClusterOptions with_slow_planner(uint32_t slow) {
  ClusterOptions options;
  options.planning_ns = [slow](uint32_t machine) { return machine == slow ? kSecond / 5 : 0; };
  return options;
}

TEST(Commit, OfTablesThatDifferIsRefusedWhenTheyHaveBeenCompared) {
  for (const uint32_t slow : {0u, 1u}) {
    World world({1, 2}, with_slow_planner(slow));
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
    const auto first = static_cast<uint32_t>(world.tensors.size());
    std::vector<Tensor> ours = grown(world.tensors), theirs = grown(world.tensors, 7001);
    world.cluster.place(ours);
    world.cluster.place(theirs);
    ask(world.cluster, 0, ours, first);
    for (const uint32_t rank : {1u, 2u}) ask(world.cluster, rank, theirs, first);
    world.cluster.run_for(kSecond / 10);
    EXPECT_FALSE(all_answered(world.cluster));
    ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kMISMATCH));
    EXPECT_NE(world.cluster.rank(2).replies[Cluster::kCommit].message.find(
                  "tensor " + std::to_string(first) + ": rank 0 has late.weight fp32[1,7000]"),
              std::string::npos)
        << world.cluster.rank(2).replies[Cluster::kCommit].message;
  }
}

// Nobody is left waiting, and nothing of a communicator that has gone is touched.
TEST(Commit, ThatARankLeavesWhileTablesAreMadeIsAnswered) {
  for (const uint32_t slow : {0u, 1u}) {
    for (const uint32_t leaver : {0u, 1u}) {
      World world({1, 1}, with_slow_planner(slow));
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
      commit_one_more(world);
      world.cluster.run_for(kSecond / 10);
      world.cluster.say_goodbye(leaver);
      world.cluster.run_for(kSecond);
      const uint32_t other = 1 - leaver;
      ASSERT_EQ(world.cluster.rank(other).replies.count(Cluster::kCommit), 1u)
          << "planner " << slow << ", leaver " << leaver;
      EXPECT_EQ(world.cluster.rank(other).replies[Cluster::kCommit].code, StatusCode::kRANK_LOST)
          << world.cluster.rank(other).replies[Cluster::kCommit].message;
    }
  }
}

// What another thread of the rank says before the new table is there is answered, and not kept.
TEST(Commit, TakesNothingOfAStepWhileItIsPending) {
  ClusterOptions options;
  options.planning_ns = [](uint32_t) { return kSecond / 100; };
  World world({1, 1}, options);
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 0));
  commit_one_more(world);
  world.cluster.run_for(kSecond / 1000);
  ASSERT_FALSE(all_answered(world.cluster));
  ASSERT_TRUE(world.cluster.done_step(0, 0, /*dropped=*/true).ok());
  ASSERT_TRUE(world.cluster.done_step(1, 0, /*dropped=*/true).ok());
  Rank& rank = world.cluster.rank(0);
  rank.completions.clear();
  ASSERT_TRUE(world.cluster.submit(0, 1, 0, world.tensors[0]).ok());
  ASSERT_TRUE(world.cluster.absent(0, 1, 1).ok());
  ASSERT_TRUE(world.cluster.end_step(0, 1).ok());
  ASSERT_EQ(rank.completions.size(), 3u);
  for (const Rank::Completion& refused : rank.completions) {
    EXPECT_EQ(static_cast<StatusCode>(refused.record.status), StatusCode::kBUSY) << refused.text;
    EXPECT_NE(refused.text.find("is committing"), std::string::npos) << refused.text;
  }
  ASSERT_NO_FATAL_FAILURE(expect_commits(world.cluster, StatusCode::kOK));
  world.cluster.request_redo(0);  // as a client does that was refused
  ASSERT_NO_FATAL_FAILURE(world.take_attempt(0));
  rank.completions.clear();
  ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, 1));
  expect_reference(world.cluster, world.tensors, world.shape, 1);
}

TEST(Commit, ThatMayWaitForEverIsNotEndedByTheFirstLook) {
  for (const uint64_t for_ever : {uint64_t{1} << 62, uint64_t{1} << 58, UINT64_MAX}) {
    World world({1, 1}, {.timeout_ms = for_ever});
    world.cluster.rank(0).replies.erase(Cluster::kCommit);
    ask(world.cluster, 0, world.tensors, 5);
    world.cluster.run_for(10 * kSecond);
    EXPECT_EQ(world.cluster.rank(0).replies.count(Cluster::kCommit), 0u)
        << world.cluster.rank(0).replies[Cluster::kCommit].message;
  }
}

TEST(Commit, ThatWaitsForARankNamesItsMachineEverywhere) {
  for (uint32_t late : {0u, 2u, 3u}) {
    World world({1, 1, 2}, {.timeout_ms = 20'000});
    for (uint32_t r = 0; r < 4; ++r) {
      if (r != late) ask(world.cluster, r, world.tensors, 5);
    }
    world.cluster.run_for(25 * kSecond);
    const std::string machine = "machine " + std::to_string(late < 2 ? late : 2);
    for (uint32_t r = 0; r < 4; ++r) {
      if (r == late) continue;
      const wire::Reply& reply = world.cluster.rank(r).replies[Cluster::kCommit];
      EXPECT_EQ(reply.code, StatusCode::kTIMED_OUT) << reply.message;
      const bool named = reply.message.find(machine) != std::string::npos ||
                         reply.message.find("rank " + std::to_string(late)) != std::string::npos;
      EXPECT_TRUE(named) << "rank " << r << " waits for rank " << late << ": " << reply.message;
    }
  }
}

}  // namespace
}  // namespace cgx::sim
