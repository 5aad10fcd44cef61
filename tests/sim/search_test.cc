// Mode auto: plans that are searched, tried and kept, on several machines at once.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "scheduler/planners/proposal.h"
#include "tests/sim/epoch_log.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Figures of no machine: arithmetic takes no time here, only links do, but where a test has it.
std::shared_ptr<const scheduler::MachineCosts> some_costs() {
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::default_menu()) {
    costs->codecs.push_back({spec, {0, 0.01}, {0, 0.01}});
  }
  return costs;
}

scheduler::Policy auto_policy() {
  scheduler::Policy policy;
  policy.mode = scheduler::PlanMode::kAuto;
  policy.group_bytes = 16 * 1024;
  policy.stats_steps = policy.replica_check_steps = 0;
  return policy;
}

struct Job {
  explicit Job(ClusterOptions options)
      : world(
            {2, 1, 1},
            [&] {
              if (options.policy.mode == scheduler::PlanMode::kFixed)
                options.policy = auto_policy();
              if (options.costs == nullptr) options.costs = some_costs();
              return options;
            }(),
            /*raw=*/false) {}

  // One step on all ranks; what its results are.
  std::vector<float> play(uint64_t step) {
    run_step(world.cluster, world.tensors, step);
    std::set<uint64_t> epochs;
    for (uint32_t r = 0; r < world.cluster.size(); ++r) {
      epochs.insert(world.cluster.rank(r).find(CGX_COMPLETE_STEP, step)->record.epoch);
    }
    EXPECT_EQ(epochs.size(), 1u) << "step " << step << " ran under one plan everywhere";
    epoch_of[step] = *epochs.begin();
    std::vector<float> results = of_rank(0);
    for (uint32_t r = 1; r < world.cluster.size(); ++r) {
      const std::vector<float> others = of_rank(r);
      EXPECT_EQ(std::memcmp(results.data(), others.data(), results.size() * sizeof(float)), 0)
          << "step " << step << ", rank " << r;
    }
    return results;
  }
  std::vector<float> of_rank(uint32_t rank) {
    std::vector<float> results;
    for (const Tensor& tensor : world.tensors) {
      const float* const data = world.cluster.rank(rank).at<float>(tensor.offset);
      results.insert(results.end(), data, data + tensor.elements);
    }
    return results;
  }
  scheduler::CommunicatorSnapshot shown(uint32_t machine = 0) {
    scheduler::Snapshot snapshot = world.cluster.engine(machine).snapshot(0);
    EXPECT_EQ(snapshot.communicators.size(), 1u);
    show_plan(snapshot.communicators[0]);
    return snapshot.communicators[0];
  }
  CodecSpec codec_of(const std::string& tensor) {
    for (const auto& each : shown().tensors) {
      if (each.name == tensor) return each.codec;
    }
    ADD_FAILURE() << tensor;
    return {};
  }
  World world;
  std::map<uint64_t, uint64_t> epoch_of;  // by step
};

TEST(Search, CompressesOverASlowLink) {
  Job job({.port_bytes_per_second = 2'000'000});
  EXPECT_EQ(job.codec_of("linear.weight").codec, 0) << "at first nothing is compressed";
  for (uint64_t step = 0; step < 60; ++step) job.play(step);
  const auto shown = job.shown();
  EXPECT_EQ(shown.searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
  EXPECT_EQ(job.codec_of("bias").codec, 0) << "small tensors stay as they are";
  ASSERT_FALSE(shown.plan_notes.empty());
  const auto& first = shown.plan_notes.front();
  EXPECT_EQ(first.verdict, "kept") << first.name;
  EXPECT_LT(first.measured, 0.5);
  EXPECT_GT(first.step_ns, 0);
  EXPECT_EQ(job.shown(1).searching, "") << "the coordinator searches";
  EXPECT_GT(shown.trial_time.elapsed_ns, 0u);
  EXPECT_LE(shown.trial_time.spent_ns, shown.trial_time.allowed_ns);
  EXPECT_GT(shown.trial_time.allowed_ns, shown.trial_time.elapsed_ns / 100);
  EXPECT_EQ(job.shown(1).trial_time.elapsed_ns, 0u);
}

// A job that counts its samples begins at any step.
TEST(Search, SettlesWhereStepsHaveLongNumbers) {
  constexpr uint64_t kFirst = 5'000'000'000;
  Job job({.port_bytes_per_second = 2'000'000, .first_step = kFirst});
  for (uint64_t step = kFirst; step < kFirst + 60; ++step) job.play(step);
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
}

// Machines that take long to encode, and a link so slow that it is worth it.
ClusterOptions options_of_slow_encoders() {
  constexpr double kNsPerByte = 800;
  auto costs = std::make_shared<scheduler::MachineCosts>(*some_costs());
  for (scheduler::CodecCurves& codec : costs->codecs) {
    if (codec.spec.codec != 0) codec.encode.ns_per_byte = kNsPerByte / 2;  // sums take nothing here
  }
  const auto takes_ns = [](const scheduler::OperationSetup& setup, const scheduler::SiteJob& job) {
    const std::vector<scheduler::Segment>& segments = setup.group->segments;
    const bool compressed = std::any_of(segments.begin(), segments.end(),
                                        [](const auto& one) { return one.spec.codec != 0; });
    const double price = compressed && job.kind == scheduler::SiteJobKind::kEncode ? kNsPerByte : 0;
    return static_cast<int64_t>(price *
                                static_cast<double>(setup.layout->part(job.part).raw_bytes));
  };
  scheduler::Policy policy = auto_policy();
  policy.default_codec.bits = 2;
  policy.menu = {{.codec = 0, .bucket = 512}};
  return {.policy = policy,
          .port_bytes_per_second = 2'000'000,
          .site = [=](uint32_t) { return SlowSiteOptions{.takes_ns = takes_ns, .one_core = true}; },
          .costs = costs};
}

std::string verdicts_of(Job& job) {
  std::string said;
  for (const auto& note : job.shown().plan_notes) {
    said += std::to_string(note.step) + " " + note.name + ": " + note.verdict + "; ";
  }
  return said;
}

// Encoding holds the compressed plan up, so hardly a step shows that the link became faster.
TEST(Search, NoticesAFasterLinkBehindACompressedPlan) {
  Job job(options_of_slow_encoders());
  uint64_t step = 0;
  while (step < 150) job.play(step++);
  ASSERT_EQ(job.shown().searching, "settled");
  ASSERT_NE(job.codec_of("linear.weight").codec, 0);
  job.world.cluster.shape(200'000'000);
  constexpr int kToNotice = 30, kToSwitch = 80;
  for (int i = 0; i < kToNotice; ++i) job.play(step++);
  EXPECT_THAT(verdicts_of(job), HasSubstr("search: answers come faster: the link may be"));
  for (int i = 0; i < kToSwitch; ++i) job.play(step++);
  EXPECT_EQ(job.codec_of("linear.weight").codec, 0) << verdicts_of(job);
}

// There is memory for the plan that runs and one on trial.
TEST(Search, KeepsAFasterPlanWhereThereIsNoRoomForAThird) {
  ClusterOptions options{.port_bytes_per_second = 2'000'000};
  uint64_t both = 0, step = 0;
  {
    Job job(options);
    while (job.shown().searching != "trying") job.play(step++);
    both = job.shown().reserved_bytes;
  }
  options.limits = [both](uint32_t) {
    scheduler::Limits limits;
    limits.plan_bytes = both / 7 * 8 + 8;  // one user may have 7 eighths
    return limits;
  };
  Job job(options);
  for (step = 0; step < 120; ++step) job.play(step);
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec) << verdicts_of(job);
  EXPECT_THAT(verdicts_of(job), HasSubstr("adopting: RESOURCE_EXHAUSTED"));
}

TEST(Search, StaysExactWhereCompressingGainsNothing) {
  // Every frame takes long, whatever it carries.
  Job job({.latency_ns = 1'000'000, .port_bytes_per_second = 0});
  for (uint64_t step = 0; step < 200; ++step) {
    job.play(step);
    if (job.shown().searching == "settled") break;
  }
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight").codec, 0);
}

TEST(Search, StepsOfATrialAlternateOnAllMachines) {
  Job job({.port_bytes_per_second = 2'000'000});
  for (uint64_t step = 0; step < 40; ++step) job.play(step);
  const auto notes = job.shown().plan_notes;
  ASSERT_FALSE(notes.empty());
  const uint64_t first = notes[0].step, tried = notes[0].epoch;
  const scheduler::Trial rule{.against = 1, .block = 4, .pairs = 6};
  for (uint64_t step = first; step < first + 10; ++step) {  // one pair tells here: then others come
    EXPECT_EQ(job.epoch_of[step] == tried, rule.tries(step - first)) << step;
  }
}

TEST(Search, ExplainsAChoiceByStepsThatAreMeasuredForIt) {
  Job job({.port_bytes_per_second = 2'000'000});
  std::optional<Result<scheduler::Explanation>> told, elsewhere;
  std::optional<Result<scheduler::WhatIf>> found;
  const scheduler::ExplainRequest request{.job = "job", .tensor = "linear.weight"};
  job.world.cluster.engine(0).explain(request, [&](const auto& answer) { told = answer; });
  job.world.cluster.engine(1).explain(request, [&](const auto& answer) { elsewhere = answer; });
  job.world.cluster.engine(0).what_if({.job = "job", .policy = auto_policy(), .machines = 16},
                                      [&](const auto& answer) { found = answer; });
  ASSERT_TRUE(elsewhere) << "steps are not measured there";
  EXPECT_EQ(elsewhere->status().code(), StatusCode::kUNAVAILABLE);
  EXPECT_THAT(elsewhere->status().message(), HasSubstr("measured by machine 0"));
  EXPECT_FALSE(told) << "no step has been measured";
  for (uint64_t step = 0; step < 12; ++step) job.play(step);
  ASSERT_TRUE(told && told->ok()) << (told ? told->status().to_string() : "no answer");
  EXPECT_GT((*told)->chosen.step_ns, 0);
  ASSERT_FALSE((*told)->others.empty());
  ASSERT_TRUE(found && found->ok()) << (found ? found->status().to_string() : "no answer");
  EXPECT_GT((*found)->step_ns, 0);
}

// Others' commits come between.
TEST(Search, AnswersWhoAsksInSlices) {
  Job job({.port_bytes_per_second = 2'000'000, .planning_ns = [](uint32_t) { return 0; }});
  scheduler::Engine& engine = job.world.cluster.engine(0);
  int answered = 0;
  const auto take = [&](const auto& answer) { answered += answer.ok(); };
  engine.explain({.job = "job", .tensor = "linear.weight"}, take);
  engine.profile({.job = "job"}, take);
  engine.what_if({.job = "job", .policy = auto_policy(), .machines = 16}, take);
  for (uint64_t step = 0; step < 12; ++step) job.play(step);
  EXPECT_EQ(answered, 3);
  ASSERT_EQ(job.world.cluster.considered().size(), 3u);
  for (const uint32_t slices : job.world.cluster.considered()) {
    EXPECT_GE(slices, 44u) << "11 crowds x 4 ways are fitted, one of them in a slice";
  }
}

TEST(Search, AnswersWhoAsksWhatAStepCostsThoughNoneComes) {
  Job job({});
  std::optional<Result<scheduler::Explanation>> told, unknown;
  job.world.cluster.engine(0).explain({.job = "job", .tensor = "bias"},
                                      [&](const auto& answer) { told = answer; });
  job.world.cluster.run_for(40 * kSecond);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->status().code(), StatusCode::kTIMED_OUT);
  job.world.cluster.engine(0).explain({.job = "job", .tensor = "nobody"},
                                      [&](const auto& answer) { unknown = answer; });
  for (uint64_t step = 0; step < 8; ++step) job.play(step);
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->status().code(), StatusCode::kNOT_FOUND);
}

TEST(Search, RepeatsATrialFromTheHistoryBitByBit) {
  EpochLog recorded;
  std::vector<std::vector<float>> results;
  {
    Job job({.port_bytes_per_second = 2'000'000, .plans = &recorded});
    for (uint64_t step = 0; step < 45; ++step) results.push_back(job.play(step));
  }
  uint32_t trials = 0;
  for (const auto& entry : recorded.entries) trials += entry.plan.trial.on();
  EXPECT_GE(trials, 1u);
  EXPECT_GE(recorded.entries.size(), trials + 2) << "the commit, and what was kept";
  auto history = std::make_shared<const std::vector<scheduler::PlanEntry>>(recorded.entries);
  Job again({.plan_history = history});
  for (uint64_t step = 0; step < 45; ++step) {
    const std::vector<float> result = again.play(step);
    ASSERT_EQ(std::memcmp(result.data(), results[step].data(), result.size() * sizeof(float)), 0)
        << step;
  }
}

TEST(Search, SaysOnEveryMachineAndInTheHistoryWhyEpochsCame) {
  EpochLog recorded;
  Job job({.port_bytes_per_second = 2'000'000, .plans = &recorded});
  for (uint64_t step = 0; step < 45; ++step) job.play(step);
  uint32_t trials = 0, kept = 0;
  for (const auto& entry : recorded.entries) {
    const bool on_trial = entry.plan.trial.on();
    trials += on_trial;
    if (entry.origin.who == scheduler::kByPlanner) {
      EXPECT_EQ(entry.origin.why.find("on trial against epoch ") == 0, on_trial)
          << entry.origin.why;
    }
    kept += entry.origin.why.find(": kept, a step took ") != std::string::npos;
    for (const uint32_t machine : {0u, 2u}) {
      const auto switches = job.shown(machine).switches;
      EXPECT_THAT(switches,
                  Contains(::testing::Field(&scheduler::SwitchSnapshot::origin, entry.origin)));
    }
  }
  EXPECT_GE(trials, 1u);
  EXPECT_GE(kept, 1u);
  const auto notes = job.shown().plan_notes;
  ASSERT_EQ(recorded.remarks.size(), notes.size());
  for (size_t i = 0; i < notes.size(); ++i) {
    EXPECT_EQ(recorded.remarks[i].note.verdict, notes[i].verdict);
  }
}

TEST(Search, AnOperatorsPolicyComesFirst) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  while (job.shown().searching != "trying") job.play(step++);
  for (int i = 0; i < 3; ++i) job.play(step++);
  StatusCode code = StatusCode::kINTERNAL;
  scheduler::Policy eight;
  eight.default_codec = {.codec = 3, .bits = 8, .bucket = 512};
  job.world.cluster.engine(1).apply_policy(
      {.job = "job", .policy = eight},
      [&](const Result<scheduler::PolicyChange>& change) { code = change.status().code(); });
  ASSERT_TRUE(job.world.cluster.run_until([&] { return code != StatusCode::kINTERNAL; }));
  EXPECT_EQ(code, StatusCode::kOK);
  for (int i = 0; i < 5; ++i) job.play(step++);
  EXPECT_EQ(job.codec_of("linear.weight"), eight.default_codec);
  const uint64_t epoch = job.epoch_of[step - 1];
  for (int i = 0; i < 60; ++i) job.play(step++);
  EXPECT_EQ(job.epoch_of[step - 1], epoch) << "a fixed policy is not searched";
  EXPECT_EQ(job.shown().searching, "");
}

// What has nothing to do with what is fast leaves it.
TEST(Search, APolicyOfAnotherWeightKeepsWhatWasFound) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  for (; step < 60; ++step) job.play(step);
  ASSERT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
  StatusCode code = StatusCode::kINTERNAL;
  scheduler::Policy heavier = auto_policy();
  heavier.weight = 2;
  job.world.cluster.engine(1).apply_policy(
      {.job = "job", .policy = heavier},
      [&](const Result<scheduler::PolicyChange>& change) { code = change.status().code(); });
  ASSERT_TRUE(job.world.cluster.run_until([&] { return code != StatusCode::kINTERNAL; }));
  ASSERT_EQ(code, StatusCode::kOK);
  const uint64_t epoch = job.epoch_of[step - 1];
  for (int i = 0; i < 60; ++i) {
    job.play(step++);
    EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec) << "step " << step - 1;
  }
  EXPECT_GT(job.epoch_of[step - 1], epoch);
  EXPECT_EQ(job.shown().searching, "settled");
}

// Agreed on, and in force with the next step.
TEST(Search, APolicyOfAnotherWeightKeepsWhatIsAboutToRun) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  while (job.shown().searching != "adopting") job.play(step++);
  job.world.cluster.run_for(kSecond / 10);
  std::optional<Result<scheduler::PolicyChange>> change;
  scheduler::Policy heavier = auto_policy();
  heavier.weight = 2;
  job.world.cluster.engine(0).apply_policy({.job = "job", .policy = heavier},
                                           [&](const auto& answer) { change = answer; });
  job.world.cluster.run_for(kSecond / 10);
  for (int i = 0; i < 4; ++i) job.play(step++);
  ASSERT_TRUE(change && change->ok());
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
}

TEST(Search, SettlesWhereEveryStepIsMeasured) {
  scheduler::Policy policy = auto_policy();
  policy.stats_steps = policy.replica_check_steps = 1;
  Job job({.policy = policy, .port_bytes_per_second = 2'000'000});
  for (uint64_t step = 0; step < 60; ++step) job.play(step);
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight"), policy.default_codec);
}

TEST(Search, KeepsNoResidualsForAFixedPolicyWithoutThem) {
  scheduler::Policy policy = auto_policy();
  policy.default_codec.flags |= CodecSpec::kFeedback;
  Job job({.policy = policy, .port_bytes_per_second = 2'000'000});
  const uint64_t uncompressed = job.shown().reserved_bytes;
  uint64_t step = 0;
  while (step < 60) job.play(step++);
  ASSERT_TRUE(job.codec_of("linear.weight").feedback());
  ASSERT_GE(job.shown(1).reserved_bytes, 8 * 20'011u);
  scheduler::Policy fixed = raw_policy();
  fixed.stats_steps = fixed.replica_check_steps = 0;
  std::optional<Result<scheduler::PolicyChange>> change;
  job.world.cluster.engine(0).apply_policy({.job = "job", .policy = fixed},
                                           [&](const auto& answer) { change = answer; });
  ASSERT_TRUE(job.world.cluster.run_until([&] { return change.has_value(); }));
  ASSERT_TRUE(change->ok()) << change->status().to_string();
  for (int i = 0; i < 6; ++i) job.play(step++);
  for (const uint32_t machine : {0u, 1u, 2u}) {
    EXPECT_LT(job.shown(machine).reserved_bytes, uncompressed + 8 * 20'011) << machine;
  }
}

TEST(Search, ATrialGoesOnBehindAFailure) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  while (job.shown().searching != "trying") job.play(step++);
  for (int i = 0; i < 4; ++i) job.play(step++);
  // A rank gives its step up, and all redo it.
  for (int i = 0; i < 3; ++i) {
    job.world.abandon(2, step);
    job.world.cluster.run_for(kSecond / 10);
    ASSERT_NO_FATAL_FAILURE(job.world.ask_for_redo(step));
    job.play(step++);
  }
  for (int i = 0; i < 60; ++i) job.play(step++);
  EXPECT_EQ(job.shown().searching, "settled");
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
}

// Its ranks may leave much later.
TEST(Search, IsOverWhereItsCommunicatorHasFailed) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  while (job.shown().searching != "trying") job.play(step++);
  job.world.cluster.kill_daemon(2);
  job.world.cluster.run_for(20 * kSecond);
  const auto shown = job.shown();
  EXPECT_EQ(shown.state, "failed");
  EXPECT_EQ(shown.searching, "");
}

TEST(Search, TheNextCommunicatorOfTheNameBeginsWithWhatWasFound) {
  Job job({.port_bytes_per_second = 2'000'000});
  uint64_t step = 0;
  while (step < 90 && job.shown().searching != "settled") job.play(step++);
  job.play(step++);
  ASSERT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);
  const auto groups = job.shown().plan->plan.groups;
  const auto begin_again = [&](const std::vector<Tensor>& tensors) {
    ASSERT_TRUE(job.world.cluster.create_again(step));
    job.world.tensors = tensors;
    job.world.cluster.commit(job.world.tensors);
  };
  ASSERT_NO_FATAL_FAILURE(begin_again(job.world.tensors));
  EXPECT_EQ(job.shown().plan->plan.groups, groups);
  for (int i = 0; i < 40; ++i) job.play(step++);
  EXPECT_EQ(job.codec_of("linear.weight"), auto_policy().default_codec);

  std::vector<Tensor> fewer = job.world.tensors;
  fewer.pop_back();
  ASSERT_NO_FATAL_FAILURE(begin_again(fewer));
  EXPECT_EQ(job.codec_of("linear.weight").codec, 0) << "of another table nothing is taken over";
  EXPECT_THAT(job.world.cluster.events(),
              Contains(HasSubstr("the plan kept for the name is of another table")));
}

TEST(Search, BeginsWithoutAFoundPlanThatIsRefused) {
  const auto without = Job({}).shown();
  std::vector<scheduler::Group> found = without.plan->plan.groups;
  constexpr CodecSpec kOfALaterVersion{.codec = 99, .bits = 4, .bucket = 512};
  found[0].segments[0].spec = kOfALaterVersion;
  auto kept = std::make_shared<scheduler::KeptProfiles>();
  kept->keep({0, "job", "world"}, {.table_hash = without.plan->plan.table_hash,
                                   .machines = 3,
                                   .policy = auto_policy(),
                                   .groups = found});
  Job job({.profiles = kept});
  EXPECT_EQ(job.codec_of("linear.weight").codec, 0);
  EXPECT_THAT(job.world.cluster.events(),
              Contains(HasSubstr("begins without the plan kept for its name")).Times(1));
  for (uint64_t step = 0; step < 3; ++step) job.play(step);
}

// Each of so many has a codec of its own in no plan that is tried.
TEST(Search, SaysOnceThatItLooksForNoCodecForEachOfVeryManyTensors) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 2049; ++i) {
    tensors.push_back({.name = "bias" + std::to_string(i), .elements = 4, .shape = {4}});
  }
  EpochLog recorded;
  World world({1, 1},
              {.policy = auto_policy(),
               .port_bytes_per_second = 2'000'000,
               .plans = &recorded,
               .costs = some_costs()},
              /*raw=*/false, tensors);
  uint64_t step = 0;
  const auto play = [&](int steps) {
    for (int i = 0; i < steps; ++i) run_step(world.cluster, world.tensors, step++);
  };
  play(30);
  world.cluster.shape(500'000);  // a second search
  play(60);
  const auto shown = world.cluster.engine(0).snapshot(0).communicators.at(0);
  EXPECT_EQ(shown.searching, "settled");
  const auto searches = std::count_if(shown.plan_notes.begin(), shown.plan_notes.end(),
                                      [](const auto& note) { return note.name == "search"; });
  EXPECT_GE(searches, 1) << "after the first, which has no cause";
  const auto limit = HasSubstr("2049 pieces of tensors, and a codec for each is searched for up");
  EXPECT_THAT(shown.plan_notes,
              Contains(::testing::Field(&scheduler::PlanNote::verdict, limit)).Times(1));
  EXPECT_THAT(world.cluster.warnings(), Contains(limit).Times(1));
  const auto of_limit = [&](const scheduler::PlanRemark& remark) {
    return remark.note.verdict.find("2049 pieces") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(recorded.remarks.begin(), recorded.remarks.end(), of_limit), 1);
}

TEST(Search, MergesWhereEveryOperationWaits) {
  scheduler::Policy policy = auto_policy();
  policy.mode = scheduler::PlanMode::kMerge;
  policy.min_elements = 0;
  policy.window = 1;
  policy.group_bytes = 4096;
  // A trip takes long, bytes nothing: one group is best.
  Job job({.policy = policy, .latency_ns = 1'000'000, .port_bytes_per_second = 0});
  EXPECT_EQ(job.codec_of("linear.weight"), policy.default_codec) << "codecs are the policy's";
  const size_t before = job.shown().groups.size();
  ASSERT_GT(before, 1u);
  for (uint64_t step = 0; step < 300; ++step) {
    job.play(step);
    if (job.shown().searching == "settled") break;
  }
  const auto shown = job.shown();
  EXPECT_EQ(shown.searching, "settled");
  EXPECT_LT(shown.groups.size(), before);
  EXPECT_EQ(job.codec_of("linear.weight"), policy.default_codec);
  ASSERT_FALSE(shown.plan_notes.empty());
  EXPECT_EQ(shown.plan_notes.front().name.find("merge: groups of "), 0u);
}

}  // namespace
}  // namespace cgx::sim
