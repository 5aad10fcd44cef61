// Mode auto where machines differ: the coordinator plans for the slowest of them, as far as they
// say what work takes them, and waits for nobody for long.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>

#include "scheduler/planners/proposal.h"
#include "tests/sim/frames.h"
#include "tests/sim/world.h"

namespace cgx::sim {
namespace {

using scheduler::ProfileAnswerMessage;
using scheduler::ProfileAsk;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint32_t kCoordinator = 0, kMember = 1;
constexpr double kSlowNsPerByte = 4'000;

using Slow = std::function<bool(const CodecSpec&)>;  // codecs that the member is slow with

bool all_codecs(const CodecSpec& spec) {
  return spec.codec != 0;
}

std::shared_ptr<const scheduler::MachineCosts> costs_with(const Slow& slow) {
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::default_menu()) {
    costs->codecs.push_back({spec, {0, slow(spec) ? kSlowNsPerByte : 0.01}, {0, 0.01}});
  }
  return costs;
}

// Two machines over a slow link, of which the member takes long to encode.
ClusterOptions options_with(const Slow& slow) {
  const auto takes_ns = [slow](const scheduler::OperationSetup& setup,
                               const scheduler::SiteJob& job) -> int64_t {
    const auto& segments = setup.group->segments;
    const bool takes = job.kind == scheduler::SiteJobKind::kEncode &&
                       std::any_of(segments.begin(), segments.end(),
                                   [&](const auto& segment) { return slow(segment.spec); });
    const auto bytes = static_cast<double>(setup.layout->part(job.part).raw_bytes);
    return takes ? static_cast<int64_t>(kSlowNsPerByte * bytes) : 0;
  };
  ClusterOptions options{.port_bytes_per_second = 2'000'000};
  options.policy.mode = scheduler::PlanMode::kAuto;
  options.policy.group_bytes = 16 * 1024;
  options.policy.stats_steps = options.policy.replica_check_steps = 0;
  options.site = [takes_ns](uint32_t machine) {
    SlowSiteOptions site{.one_core = true};
    if (machine == kMember) site.takes_ns = takes_ns;
    return site;
  };
  options.costs_of = [slow](uint32_t machine) {
    return costs_with(machine == kMember ? slow : [](const CodecSpec&) { return false; });
  };
  return options;
}

struct UnlikeMachines : World {
  explicit UnlikeMachines(const ClusterOptions& options) : World({1, 1}, options, /*raw=*/false) {}

  void play(int steps) {
    for (int i = 0; i < steps; ++i) {
      ASSERT_NO_FATAL_FAILURE(run_step(cluster, tensors, step));
      ++step;
    }
  }
  scheduler::CommunicatorSnapshot shown() {
    return cluster.engine(kCoordinator).snapshot(0).communicators.at(0);
  }
  std::string notes() {
    std::string text;
    for (const auto& note : shown().plan_notes) {
      text += std::to_string(note.step) + " " + note.name + ": " + note.verdict + "; ";
    }
    return text;
  }
  // Bits of the codec of the first plan tried that compresses; 0: none did.
  int tried_bits() {
    for (const auto& note : shown().plan_notes) {
      const size_t at = note.epoch == 0 ? std::string::npos : note.name.find("maxmin:");
      if (at != std::string::npos) return std::stoi(note.name.substr(at + 7));
    }
    return 0;
  }
  uint64_t step = 0;
};

TEST(UnlikeMachines, DoNotTryWhatOneOfThemCannotEncodeInTime) {
  UnlikeMachines job(options_with(all_codecs));
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
  EXPECT_EQ(job.tried_bits(), 0) << job.notes();
}

TEST(UnlikeMachines, TryTheCodecThatAllEncodeInTime) {
  UnlikeMachines job(options_with([](const CodecSpec& spec) { return spec.bits == 4; }));
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.tried_bits(), 8) << job.notes();
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
  EXPECT_THAT(job.notes(), HasSubstr("kept"));
}

// The search goes by what the coordinator knows, and a trial decides.
TEST(UnlikeMachines, SearchWithoutOneThatNeverAnswers) {
  UnlikeMachines job(options_with(all_codecs));
  job.cluster.let_through([](uint32_t machine, const transport::Frame& frame) {
    return machine != kCoordinator || !carries<ProfileAnswerMessage>(frame);
  });
  ASSERT_NO_FATAL_FAILURE(job.play(120));
  EXPECT_EQ(job.tried_bits(), 4) << job.notes();
  EXPECT_THAT(job.notes(), HasSubstr("survey: without machine 1 (10.0.0.2) with rank 1: has not "
                                     "answered within 2000 ms"));
  EXPECT_THAT(job.notes(), HasSubstr("no faster"));
}

TEST(UnlikeMachines, SayWhoDoesNotKnowWhatCodecsCost) {
  ClusterOptions options = options_with(all_codecs);
  options.costs_of = [known = options.costs_of](uint32_t machine) {
    return machine == kMember ? nullptr : known(machine);
  };
  UnlikeMachines job(options);
  ASSERT_NO_FATAL_FAILURE(job.play(30));
  EXPECT_THAT(job.notes(), HasSubstr("without machine 1 (10.0.0.2) with rank 1: UNIMPLEMENTED: "
                                     "nobody knows what codecs cost there"));
  EXPECT_THAT(job.cluster.warnings(),
              Contains(AllOf(HasSubstr("a search for plans is limited"),
                             HasSubstr("without machine 1 (10.0.0.2) with rank 1"))));
  EXPECT_EQ(job.tried_bits(), 4) << job.notes();
}

// Drops the member's answers, and keeps them.
void hold_answers(Cluster& cluster, std::vector<KeptFrame>& held) {
  cluster.let_through([&held](uint32_t machine, const transport::Frame& frame) {
    if (machine != kCoordinator || !carries<ProfileAnswerMessage>(frame)) return true;
    held.emplace_back(frame);
    return false;
  });
}

void play_until_asked(UnlikeMachines& job, const std::vector<KeptFrame>& held) {
  while (held.empty()) {
    ASSERT_LT(job.step, 40u);
    ASSERT_NO_FATAL_FAILURE(job.play(1));
  }
  ASSERT_EQ(job.shown().searching, "surveying");
}

// Of the same tensors, on all ranks.
void commit_again(UnlikeMachines& job) {
  for (uint32_t r = 0; r < job.cluster.size(); ++r) {
    job.cluster.rank(r).replies.clear();
    job.cluster.request_commit(r, static_cast<uint32_t>(job.tensors.size()));
  }
  const auto committed = [&](uint32_t r) {
    return job.cluster.rank(r).replies.count(Cluster::kCommit) > 0;
  };
  ASSERT_TRUE(job.cluster.run_until([&] { return committed(0) && committed(1); }));
  for (uint32_t r = 0; r < job.cluster.size(); ++r) {
    EXPECT_EQ(job.cluster.rank(r).replies[Cluster::kCommit].code, StatusCode::kOK);
  }
}

// A commit drops the first question.
TEST(UnlikeMachines, TakeNoAnswerToAnOlderQuestion) {
  UnlikeMachines job(options_with(all_codecs));
  std::vector<KeptFrame> held;
  hold_answers(job.cluster, held);
  ASSERT_NO_FATAL_FAILURE(play_until_asked(job, held));
  ASSERT_NO_FATAL_FAILURE(commit_again(job));
  while (held.size() < 2) {
    ASSERT_LT(job.step, 80u) << job.notes();
    ASSERT_NO_FATAL_FAILURE(job.play(1));
  }
  for (int i = 0; i < 2; ++i) held[0].deliver(job.cluster, kCoordinator);
  ASSERT_NO_FATAL_FAILURE(job.play(2));
  EXPECT_EQ(job.shown().searching, "surveying");
  for (int i = 0; i < 2; ++i) held[1].deliver(job.cluster, kCoordinator);
  ASSERT_NO_FATAL_FAILURE(job.play(2));
  EXPECT_NE(job.shown().searching, "surveying");
  job.cluster.let_through({});
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
  EXPECT_EQ(job.tried_bits(), 0) << "the second answer counts: " << job.notes();
}

TEST(UnlikeMachines, CommitWhileOneIsAsked) {
  UnlikeMachines job(options_with(all_codecs));
  std::vector<KeptFrame> held;
  hold_answers(job.cluster, held);
  ASSERT_NO_FATAL_FAILURE(play_until_asked(job, held));
  const int64_t began_ns = job.cluster.now_ns();
  ASSERT_NO_FATAL_FAILURE(commit_again(job));
  EXPECT_LT(job.cluster.now_ns() - began_ns, kSecond / 10) << "less than one is waited for";
  job.cluster.let_through({});
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
  EXPECT_EQ(job.tried_bits(), 0) << "it was asked again: " << job.notes();
}

TEST(UnlikeMachines, CloseWhileOneIsAsked) {
  UnlikeMachines job(options_with(all_codecs));
  std::vector<KeptFrame> held;
  hold_answers(job.cluster, held);
  ASSERT_NO_FATAL_FAILURE(play_until_asked(job, held));
  ASSERT_TRUE(job.cluster.create_again(job.step));
  job.cluster.let_through({});
  job.cluster.commit(job.tensors);
  held.front().deliver(job.cluster, kCoordinator);  // of the communicator before
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
}

TEST(UnlikeMachines, EndInOrderWhereTheOneThatIsAskedDies) {
  UnlikeMachines job(options_with(all_codecs));
  std::vector<KeptFrame> held;
  hold_answers(job.cluster, held);
  ASSERT_NO_FATAL_FAILURE(play_until_asked(job, held));
  submit_step(job.cluster, job.tensors, job.step);
  job.cluster.kill_daemon(kMember);
  ASSERT_TRUE(job.cluster.run_until(
      [&] { return job.step_status(0, job.step) != StatusCode::kBUSY; }, 20 * kSecond));
  EXPECT_EQ(job.step_status(0, job.step), StatusCode::kPEER_LOST) << job.step_text(0, job.step);
  job.cluster.run_for(5 * kSecond);
  EXPECT_EQ(job.notes().find("survey"), std::string::npos) << "nobody searches any more";
}

// A step is given up and redone while it is asked.
TEST(UnlikeMachines, SearchGoesOnBehindAFailure) {
  UnlikeMachines job(options_with(all_codecs));
  std::vector<KeptFrame> held;
  hold_answers(job.cluster, held);
  ASSERT_NO_FATAL_FAILURE(play_until_asked(job, held));
  job.abandon(1, job.step);
  job.cluster.run_for(kSecond / 10);
  held.front().deliver(job.cluster, kCoordinator);
  job.cluster.let_through({});
  ASSERT_NO_FATAL_FAILURE(job.ask_for_redo(job.step));
  ASSERT_NO_FATAL_FAILURE(job.play(60));
  EXPECT_EQ(job.shown().searching, "settled") << job.notes();
  EXPECT_EQ(job.tried_bits(), 0) << job.notes();
}

// The last tensor comes late on the member, and the first one some time after the step before.
TEST(UnlikeMachines, TellWhatStepsTakeThere) {
  constexpr int64_t kPauseNs = 30'000'000, kLateNs = 50'000'000;
  UnlikeMachines job(options_with(all_codecs));
  std::optional<wire::MachineProfile> told;
  job.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    if (machine != kCoordinator || told || !carries<ProfileAnswerMessage>(frame)) return;
    const auto read = wire::decode_profile(message_of<ProfileAnswerMessage>(frame).profile);
    if (read.ok()) told = *read;
  });
  const auto pass = [&](int64_t ns) {
    job.cluster.wake_at(job.cluster.now_ns() + ns);
    job.cluster.run_for(ns);
    job.cluster.run_rounds(1);  // engines know of it
  };
  uint64_t epoch = 0;
  for (; job.step < 20 && !told; ++job.step) {
    epoch = job.shown().epoch;
    pass(kPauseNs);
    fill(job.cluster, job.tensors, job.step);
    submit_all(job.cluster, job.tensors, kCoordinator, job.step);
    for (uint32_t t = 0; t < job.tensors.size(); ++t) {
      if (t + 1 == job.tensors.size()) pass(kLateNs);
      ASSERT_TRUE(job.cluster.submit(kMember, job.step, t, job.tensors[t]).ok());
    }
    ASSERT_TRUE(job.cluster.end_step(kMember, job.step).ok());
    ASSERT_TRUE(job.cluster.run_until([&] { return job.cluster.all_ended(job.step); }));
  }
  ASSERT_TRUE(told) << job.notes();
  EXPECT_EQ(told->codecs.size(), scheduler::default_menu().size());
  EXPECT_GE(told->trip_ns, 20'000);
  ASSERT_FALSE(told->plans.empty());
  const wire::MachineProfile::Plan& plan = told->plans.back();
  EXPECT_EQ(plan.epoch, epoch);
  EXPECT_NEAR(plan.between_ns, kPauseNs, 1e6);
  EXPECT_NEAR(plan.last_ns, kLateNs, 1e6);
  EXPECT_GT(plan.step_ns, plan.last_ns);
}

// Members say nothing unasked, and only to their coordinator.
TEST(UnlikeMachines, AnswerOnlyTheirCoordinator) {
  UnlikeMachines job(options_with(all_codecs));
  uint32_t answers = 0;
  std::optional<KeptFrame> from_coordinator, from_member;
  job.cluster.tap([&](uint32_t machine, const transport::Frame& frame) {
    answers += carries<ProfileAnswerMessage>(frame);
    (machine == kMember ? from_coordinator : from_member).emplace(frame);
  });
  ASSERT_NO_FATAL_FAILURE(job.play(2));
  ASSERT_TRUE(from_coordinator && from_member);
  EXPECT_EQ(answers, 0u);
  from_member->say(ProfileAsk{5});
  from_member->deliver(job.cluster, kCoordinator);
  from_member->say(ProfileAnswerMessage{.number = 0, .text = {}, .profile = {}});
  from_member->deliver(job.cluster, kCoordinator);
  job.cluster.run_for(kSecond / 100);
  EXPECT_EQ(answers, 0u);
  from_coordinator->say(ProfileAsk{5});
  for (int i = 0; i < 100; ++i) from_coordinator->deliver(job.cluster, kMember);
  job.cluster.run_for(kSecond / 100);
  EXPECT_EQ(answers, 1u) << "once a round";
  ASSERT_NO_FATAL_FAILURE(job.play(2));
}

}  // namespace
}  // namespace cgx::sim
