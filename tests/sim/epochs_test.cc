// Epochs that meet failures, and each other (PROTOCOL 26, 27): all machines switch at the same
// step, nothing an operator was promised gets lost, and a failure beside an epoch is only a
// failure.
#include <optional>

#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using Change = std::optional<Result<scheduler::PolicyChange>>;

void apply(Cluster& cluster, uint32_t machine, const scheduler::Policy& policy, Change& change) {
  cluster.engine(machine).apply_policy({.job = "job", .policy = policy},
                                       [&change](const auto& answer) { change = answer; });
}

scheduler::Policy with_window(uint32_t window) {
  scheduler::Policy policy = raw_policy();
  policy.window = window;
  return policy;
}

uint64_t version_of(Cluster& cluster, uint32_t rank, uint64_t step) {
  const auto* ended = cluster.rank(rank).find(CGX_COMPLETE_STEP, step);
  return ended == nullptr ? 0 : ended->record.policy_version;
}

// Two operators read the same policy, and each adds to it: one of them is told to look again.
TEST(PolicyVersions, AnAgreedChangeIsNotOverwrittenByWhoHasNotSeenIt) {
  World world({1, 1, 1});
  Cluster& cluster = world.cluster;
  const auto apply_at = [&](uint32_t machine, uint64_t expected) {
    Change change;
    cluster.engine(machine).apply_policy(
        {.job = "job", .policy = with_window(3 + machine), .expected_version = expected},
        [&change](const auto& answer) { change = answer; });
    EXPECT_TRUE(cluster.run_until([&] { return change.has_value(); }));
    return *change;
  };
  run_step(cluster, world.tensors, 0);
  ASSERT_TRUE(apply_at(1, 1).ok());
  // No step has begun under it.
  for (const uint32_t machine : {0u, 1u, 2u}) {
    const auto refused = apply_at(machine, 1);
    EXPECT_EQ(refused.status().code(), StatusCode::kBUSY);
    EXPECT_NE(refused.status().message().find("version 2, agreed and not in force yet"),
              std::string::npos)
        << refused.status().message();
  }
  run_step(cluster, world.tensors, 1);
  run_step(cluster, world.tensors, 2);
  EXPECT_EQ(version_of(cluster, 0, 2), 2u);
  EXPECT_EQ(apply_at(2, 1).status().code(), StatusCode::kBUSY);
  const auto taken = apply_at(2, 2);
  ASSERT_TRUE(taken.ok()) << taken.status().to_string();
  EXPECT_EQ(taken->policy_version, 3u);
}

class FailureBeside : public ::testing::TestWithParam<std::vector<uint32_t>> {};

// The coordinator's frames that announce it are on their way when a rank abandons its pass.
TEST_P(FailureBeside, AnAnnouncedEpochCanBeRedone) {
  const auto ranks = static_cast<uint32_t>(World(GetParam()).cluster.size());
  for (uint32_t culprit = 0; culprit < ranks; ++culprit) {
    for (uint32_t rounds = 0; rounds < 24; ++rounds) {
      SCOPED_TRACE("rank " + std::to_string(culprit) + " after " + std::to_string(rounds));
      World world(GetParam());
      uint64_t step = 0;
      for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
      Change change;
      apply(world.cluster, 0, with_window(3), change);
      if (rounds % 2 == 1) world.cluster.run_until([&] { return change.has_value(); }, kSecond);
      fill(world.cluster, world.tensors, step);
      for (uint32_t r = 0; r < ranks; ++r) {
        if (r != culprit) submit_all(world.cluster, world.tensors, r, step);
      }
      world.cluster.run_rounds(rounds);
      world.abandon(culprit, step);
      submit_all(world.cluster, world.tensors, culprit, step);
      ASSERT_TRUE(
          world.cluster.run_until([&] { return world.cluster.all_ended(step); }, 10 * kSecond));
      for (uint32_t r = 0; r < ranks; ++r) {
        EXPECT_EQ(world.step_status(r, step), StatusCode::kSTEP_ABANDONED)
            << world.step_text(r, step);
      }
      ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
    }
  }
}

// What an operator was promised comes, even if the step it was promised for failed first.
TEST_P(FailureBeside, APromisedPolicyDoesNotLoseIt) {
  for (uint32_t machine = 0; machine < GetParam().size(); ++machine) {
    World world(GetParam());
    uint64_t step = 0;
    for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
    Change change;
    apply(world.cluster, machine, with_window(3), change);
    ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, kSecond));
    ASSERT_TRUE(change->ok()) << change->status().to_string();
    ASSERT_GE((*change)->switch_step, step);
    submit_all(world.cluster, world.tensors, 0, step);
    world.abandon(world.cluster.size() - 1, step);
    ASSERT_TRUE(world.cluster.run_until(
        [&] { return world.step_status(0, step) != StatusCode::kBUSY; }, kSecond));
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
    for (++step; step < 13; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
      for (uint32_t r = 1; r < world.cluster.size(); ++r) {
        ASSERT_EQ(version_of(world.cluster, r, step), version_of(world.cluster, 0, step)) << step;
      }
    }
    EXPECT_EQ(version_of(world.cluster, 0, 12), (*change)->policy_version);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FailureBeside,
                         ::testing::Values(std::vector<uint32_t>{1, 1},
                                           std::vector<uint32_t>{2, 1, 1}));

// A policy while a step's failure is being settled: refused or taken, never a lasting failure.
TEST(Policy, AppliedWhileAStepFailsIsAnswered) {
  for (uint32_t rounds = 0; rounds < 16; ++rounds) {
    for (uint32_t machine : {0u, 1u}) {
      World world({1, 1});
      for (uint64_t step = 0; step < 5; ++step) run_step(world.cluster, world.tensors, step);
      submit_all(world.cluster, world.tensors, 0, 5);
      world.abandon(1, 5);
      submit_all(world.cluster, world.tensors, 1, 5);
      world.cluster.run_rounds(rounds);
      Change change;
      apply(world.cluster, machine, with_window(2), change);
      ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 5 * kSecond));
      ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(5); }, kSecond));
      ASSERT_NO_FATAL_FAILURE(world.expect_redo(5)) << rounds << " rounds, machine " << machine;
      for (uint64_t step = 6; step < 12; ++step) {
        ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
      }
      EXPECT_EQ(version_of(world.cluster, 0, 11), change->ok() ? (*change)->policy_version : 1);
      EXPECT_EQ(version_of(world.cluster, 1, 11), version_of(world.cluster, 0, 11));
    }
  }
}

// Machine 2 hears machine 1 late, so it is a step behind when the next epoch is announced to it.
TEST(Policies, InAShortTimeTakeForceOneAfterTheOtherOnAMachineThatLags) {
  for (scheduler::CollectiveWish wish :
       {scheduler::CollectiveWish::kAllgather, scheduler::CollectiveWish::kScatter}) {
    ClusterOptions options{.policy = raw_policy()};
    options.policy.collective = wish;
    SlowLink link{.from = 1, .to = 2, .slow_ns = 20'000'000};
    options.link_latency_ns = link.options().link_latency_ns;
    World world({1, 1, 1}, options, /*raw=*/false);
    uint64_t step = 0;
    for (; step < 6; ++step) run_step(world.cluster, world.tensors, step);  // reordered by now
    const auto asked = [&](uint32_t window, Change& change) {
      scheduler::Policy policy = options.policy;
      policy.window = window;
      apply(world.cluster, 0, policy, change);
    };
    Change first, second;
    asked(2, first);
    ASSERT_TRUE(world.cluster.run_until([&] { return first.has_value(); }, kSecond));
    ASSERT_TRUE(first->ok()) << first->status().to_string();
    link.slow = true;
    // Each rank goes on as soon as its own step is complete; the second policy is asked for when
    // the coordinator has switched.
    std::vector<uint64_t> next(3, step);
    constexpr uint64_t kEnd = 16;
    ASSERT_TRUE(world.cluster.run_until(
        [&] {
          for (uint32_t r = 0; r < 3; ++r) {
            const bool complete =
                next[r] == step || world.step_status(r, next[r] - 1) != StatusCode::kBUSY;
            if (next[r] == kEnd || !complete) continue;
            submit_all(world.cluster, world.tensors, r, next[r]++);
          }
          const bool switched = version_of(world.cluster, 0, (*first)->switch_step) != 0 ||
                                next[0] > (*first)->switch_step;
          if (switched && !second.has_value()) {
            second = Result<scheduler::PolicyChange>(internal_error("no answer"));
            asked(3, second);
          }
          return world.cluster.all_ended(kEnd - 1);
        },
        20 * kSecond));
    ASSERT_TRUE(second->ok()) << second->status().to_string();
    for (uint64_t s = step; s < kEnd; ++s) {
      for (uint32_t r = 0; r < 3; ++r) {
        ASSERT_EQ(world.step_status(r, s), StatusCode::kOK) << world.step_text(r, s);
        ASSERT_EQ(version_of(world.cluster, r, s), version_of(world.cluster, 0, s))
            << "rank " << r << " step " << s;
      }
    }
    EXPECT_EQ(version_of(world.cluster, 2, kEnd - 1), (*second)->policy_version);
  }
}

// The communicator an operator asked about ends while the answer is on its way.
TEST(Policy, AskedOfACommunicatorThatEndsIsAnswered) {
  for (uint32_t machine : {0u, 1u}) {
    for (uint32_t first : {0u, 1u}) {
      World world({1, 1});
      run_step(world.cluster, world.tensors, 0);
      Change change;
      apply(world.cluster, machine, with_window(3), change);
      world.cluster.say_goodbye(first);
      world.cluster.say_goodbye(1 - first);
      world.cluster.run_for(10 * kSecond);
      EXPECT_TRUE(change.has_value()) << "machine " << machine << ", rank " << first << " first";
    }
  }
}

TEST(Policy, ThatAMachineDoesNotAnswerLapsesAndTheNextOneIsTaken) {
  World world({1, 1, 1});
  uint64_t step = 0;
  for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
  world.cluster.let_through([](uint32_t, const transport::Frame& frame) {
    return header_of(frame).source != 2 || !carries<scheduler::Prepared>(frame);
  });
  Change lapsed, taken;
  apply(world.cluster, 0, with_window(3), lapsed);
  ASSERT_TRUE(world.cluster.run_until([&] { return lapsed.has_value(); }, 4 * kSecond));
  EXPECT_EQ(lapsed->status().code(), StatusCode::kTIMED_OUT) << lapsed->status().to_string();
  EXPECT_NE(lapsed->status().message().find("no answer from machine 2"), std::string::npos)
      << lapsed->status().to_string();
  world.cluster.let_through({});
  apply(world.cluster, 0, with_window(2), taken);
  ASSERT_TRUE(world.cluster.run_until([&] { return taken.has_value(); }, 4 * kSecond));
  ASSERT_TRUE(taken->ok()) << taken->status().to_string();
  for (; step < (*taken)->switch_step + 1; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
  }
  for (uint32_t r : {0u, 1u, 2u}) {
    EXPECT_EQ(version_of(world.cluster, r, step - 1), (*taken)->policy_version);
  }
}

// The new term takes longer than a machine may take to answer a proposal, which comes behind it.
TEST(Policy, AskedDuringALongFailureBlamesNoMachine) {
  SlowLink link{.from = 1, .to = 0, .slow_ns = 3 * kSecond};
  World world({1, 1}, link.options());
  for (uint64_t step = 0; step < 5; ++step) run_step(world.cluster, world.tensors, step);
  link.slow = true;
  world.abandon(0, 5);
  world.cluster.run_for(kSecond * 9 / 10);
  Change change;
  apply(world.cluster, 0, with_window(3), change);
  ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 10 * kSecond));
  EXPECT_TRUE(change->ok()) << change->status().to_string();
  link.slow = false;
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(5));
}

// A link lost the decision and every word of it: machine 1 stays with its plan.
TEST(Epoch, ThatAMachineHasNotHeardOfIsNoticedAndTakenWithTheRedo) {
  World world({1, 1});
  uint64_t step = 0;
  for (; step < 5; ++step) run_step(world.cluster, world.tensors, step);
  world.cluster.let_through([&](uint32_t machine, const transport::Frame& frame) {
    if (machine == 1 && carries<scheduler::Decided>(frame)) return false;
    if (machine != 1 || header_of(frame).next_epoch == 0) return true;
    KeptFrame changed(frame);
    changed.header.next_epoch = changed.header.switch_step = 0;
    changed.deliver(world.cluster, machine);
    return false;
  });
  Change change;
  apply(world.cluster, 0, with_window(3), change);
  ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, kSecond));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  for (; step < (*change)->switch_step; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
  }
  submit_step(world.cluster, world.tensors, step);
  ASSERT_TRUE(world.cluster.run_until([&] { return world.cluster.all_ended(step); }, kSecond));
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(world.step_status(r, step), StatusCode::kMISMATCH) << world.step_text(r, step);
    EXPECT_NE(world.step_text(r, step).find("epoch"), std::string::npos)
        << world.step_text(r, step);
  }
  ASSERT_NO_FATAL_FAILURE(world.expect_redo(step));
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(version_of(world.cluster, r, step), (*change)->policy_version) << "rank " << r;
  }
}

// A proposal is on its way when a step fails: no healthy machine is said not to have answered.
TEST(Policy, ThatMeetsAFailureAtAnyMomentBlamesNoMachine) {
  for (uint32_t rounds = 0; rounds < 30; ++rounds) {
    SCOPED_TRACE(std::to_string(rounds) + " rounds");
    World world({1, 1, 1});
    for (uint64_t step = 0; step < 5; ++step) run_step(world.cluster, world.tensors, step);
    Change change;
    apply(world.cluster, rounds % 3, with_window(3), change);
    world.cluster.run_rounds(rounds / 2);
    world.abandon(2, 5);
    ASSERT_TRUE(world.cluster.run_until([&] { return change.has_value(); }, 20 * kSecond));
    if (!change->ok()) {
      EXPECT_EQ(change->status().code(), StatusCode::kSTEP_ABANDONED)
          << change->status().to_string();
    }
    ASSERT_NO_FATAL_FAILURE(world.expect_redo(5));
    for (uint64_t step = 6; step < 12; ++step) {
      ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    }
    for (uint32_t r : {0u, 1u, 2u}) {
      EXPECT_EQ(version_of(world.cluster, r, 11), change->ok() ? (*change)->policy_version : 1);
    }
  }
}

// One tensor whose residuals are nearly all that limits.plan_bytes has room for.
struct FullOfResiduals : ::testing::Test {
  static constexpr uint64_t kElements = 6'200'000;  // 50 MB of residuals
  static scheduler::Policy feedback() {
    scheduler::Policy policy;
    policy.default_codec = {.codec = 3, .bits = 8, .flags = CodecSpec::kFeedback, .bucket = 512};
    return policy;
  }
  static ClusterOptions options() {
    ClusterOptions options{.policy = feedback()};
    options.arena_bytes = 64 << 20;
    options.limits = [](uint32_t) {
      scheduler::Limits limits;
      limits.plan_bytes = (uint64_t{136} << 20) / 7 * 8;  // one user may have 7 eighths
      return limits;
    };
    return options;
  }
  Cluster cluster{options()};
  std::vector<Tensor> tensors = {{.name = "large.weight", .elements = kElements, .shape = {}}};

  void SetUp() override {
    cluster.create();
    cluster.commit(tensors);
    ASSERT_EQ(cluster.rank(0).replies[Cluster::kCommit].code, StatusCode::kOK)
        << cluster.rank(0).replies[Cluster::kCommit].message;
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 0));
  }
  uint64_t reserved() { return cluster.engine(0).snapshot(0).communicators[0].reserved_bytes; }
};

TEST_F(FullOfResiduals, ChangesItsPolicyAllTheSame) {
  const uint64_t before = reserved();
  ASSERT_GT(before + 8 * kElements, options().limits(0).plan_bytes / 8 * 7)
      << "no room for them twice";
  uint64_t step = 1;
  for (uint32_t window = 3; window < 6; ++window) {
    scheduler::Policy policy = feedback();
    policy.window = window;
    Change change;
    apply(cluster, 0, policy, change);
    ASSERT_TRUE(cluster.run_until([&] { return change.has_value(); }));
    ASSERT_TRUE(change->ok()) << change->status().to_string();
    EXPECT_GE((*change)->reserved_bytes, 8 * kElements) << "what it needs is said in full";
    for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step++));
  }
  EXPECT_LT(reserved(), before + before / 4) << "residuals are there once";
}

TEST_F(FullOfResiduals, DrainsThemUnderAPolicyThatHasNoUseForThem) {
  Change change;
  apply(cluster, 0, raw_policy(), change);
  ASSERT_TRUE(cluster.run_until([&] { return change.has_value(); }));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  for (uint64_t step = 1; step < 5; ++step) {
    ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
  }
  EXPECT_LT(reserved(), 8 * kElements) << "added to a step, and gone";
}

// The next job of the name has another model.
TEST_F(FullOfResiduals, FreesThemForTensorsOfOtherNames) {
  const uint64_t before = reserved();
  ASSERT_TRUE(cluster.create_again(1));
  tensors[0].name = "other.weight";
  cluster.commit(tensors);
  for (uint32_t r = 0; r < cluster.size(); ++r) {
    const wire::Reply& reply = cluster.rank(r).replies[Cluster::kCommit];
    ASSERT_EQ(reply.code, StatusCode::kOK) << reply.message;
  }
  ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, 1));
  EXPECT_LT(reserved(), before + before / 4) << "residuals are there once";
}

// Machine 3 has no frame of a step from the coordinator, and hears its decision late: others tell
// it that there is one.
TEST(TwoLevel, WhoHearsTheCoordinatorThroughOthersWaitsForItsDecision) {
  SlowLink link{.from = 0, .to = 3, .slow_ns = 20'000'000};
  ClusterOptions options = link.options();
  options.policy = raw_policy();
  options.policy.collective = scheduler::CollectiveWish::kTwoLevel;
  options.policy.rack_machines = 2;
  const scheduler::Policy before = options.policy;
  World world({1, 1, 1, 1}, options, /*raw=*/false);
  uint64_t step = 0;
  while (step < 6) ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step++));
  link.slow = true;
  std::optional<Result<scheduler::PolicyChange>> change;
  scheduler::Policy policy = before;
  policy.window = 3;
  world.cluster.engine(0).apply_policy({.job = "job", .policy = policy},
                                       [&](const auto& answer) { change = answer; });
  const auto goes_on = [&] { return !change || step < (*change)->switch_step + 3; };
  while (goes_on()) {
    ASSERT_LT(step, 10'000u);
    ASSERT_NO_FATAL_FAILURE(run_step(world.cluster, world.tensors, step));
    for (uint32_t r = 1; r < 4; ++r) {
      const auto version = [&](uint32_t rank) {
        return world.cluster.rank(rank).find(CGX_COMPLETE_STEP, step)->record.policy_version;
      };
      ASSERT_EQ(version(r), version(0)) << "rank " << r << " in step " << step;
    }
    ++step;
  }
}

// Machine 2 takes nothing of machine 0 in for a while, and the last step's frames wait there under
// a plan that has much less memory than theirs.
TEST(Epoch, OfMuchLessMemoryFailsNobodyWhileASlowPeerKeepsTheLastStepsFrames) {
  constexpr int64_t kCutNs = 20 * kSecond, kHealNs = kCutNs + kSecond / 2;
  constexpr uint32_t kTensors = 60;
  ClusterOptions options{.ranks_per_machine = {1, 1, 1}, .policy = with_window(64)};
  options.policy.collective = scheduler::CollectiveWish::kAllgather;
  options.policy.group_bytes = 1;  // each tensor for itself
  options.arena_bytes = 64 << 20;
  options.faults.script = {
      {.fault = transport::Fault::kCut, .from = 0, .to = 2, .at_ns = kCutNs},
      {.fault = transport::Fault::kHeal, .from = 0, .to = 2, .at_ns = kHealNs}};
  Cluster cluster(options);
  cluster.create();
  std::vector<Tensor> tensors;
  for (uint32_t t = 0; t < kTensors; ++t) {
    tensors.push_back({.name = "tensor" + std::to_string(t), .elements = 160'000, .shape = {}});
  }
  cluster.commit(tensors);
  uint64_t step = 0;
  for (; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
  Change change;
  scheduler::Policy small = options.policy;
  small.window = 1;
  apply(cluster, 0, small, change);
  ASSERT_TRUE(cluster.run_until([&] { return change.has_value(); }, kSecond));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  ASSERT_EQ((*change)->switch_step, step + 1);
  ASSERT_LT(cluster.now_ns(), kCutNs);
  cluster.run_for(kCutNs + 1 - cluster.now_ns());
  fill(cluster, tensors, step);
  for (const uint64_t each : {step, step + 1}) {
    for (const uint32_t r : {0u, 1u}) submit_all(cluster, tensors, r, each);
  }
  submit_all(cluster, tensors, 2, step);
  cluster.run_for(kHealNs - kCutNs - kSecond / 10);
  EXPECT_EQ(cluster.rank(2).find(CGX_COMPLETE_STEP, step), nullptr);
  for (const uint32_t r : {0u, 1u}) {
    ASSERT_NE(cluster.rank(r).find(CGX_COMPLETE_STEP, step), nullptr) << "rank " << r;
  }
  submit_all(cluster, tensors, 2, step + 1);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_ended(step + 1); }, 10 * kSecond));
  for (const uint32_t r : {0u, 1u, 2u}) {
    const auto* const ended = cluster.rank(r).find(CGX_COMPLETE_STEP, step + 1);
    EXPECT_EQ(ended->record.status, 0) << ended->text;
    EXPECT_EQ(ended->record.policy_version, (*change)->policy_version);
  }
}

}  // namespace
}  // namespace cgx::sim
