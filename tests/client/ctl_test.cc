#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "config/text.h"
#include "proto/messages/control.pb.h"
#include "tests/client/ctl_process.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::ctl {
namespace {

using daemon::ControlHarness;
using daemon::OpenDirectory;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Ctl : public ::testing::Test {
 protected:
  Ran run(std::vector<std::string> arguments, const RunAs& as = {}) {
    arguments.insert(arguments.begin(), {"--address", harness_.socket_path()});
    return run_ctl(arguments, as);
  }
  std::string write_file(const std::string& name, const std::string& text) {
    std::ofstream(harness_.directory / name) << text;
    return harness_.directory / name;
  }
  ControlHarness harness_;
};

TEST_F(Ctl, ShowsTheDaemonInAFewLines) {
  const Ran ran = run({"status"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("cgxd 0.1.0 node1, lane scalar, up 1 h 2 min; you are operator\n"));
  EXPECT_THAT(ran.out, HasSubstr("sessions             2  2.0 GiB shared\n"));
  EXPECT_THAT(ran.out, HasSubstr("data thread    10.00 %  busy; longest round of the last minute "
                                 "1.5 ms: gradients and frames\n"));
  EXPECT_THAT(ran.out, HasSubstr("warning: resnet/dp: rank 3 on machine 1 is 12 s late\n"));
}

TEST_F(Ctl, ShowsNothingThatATerminalTakesForACommand) {
  daemon::Snapshot snapshot = daemon::two_users();
  snapshot.communicators[0].job = "\x1b[2J";
  snapshot.communicators[1].job =
      "\xc2\x9b"
      "2J";
  snapshot.communicators[2].job = "mod\xe8le";
  harness_.port.show(snapshot);
  harness_.left = {"job '\x1b[2J'",
                   "job '\xc2\x9b"
                   "2J'",
                   "job 'mod\xe8le'"};
  const Ran jobs = run({"jobs"}), drain = run({"drain", "--wait", "0"});
  EXPECT_EQ(jobs.code, 0) << jobs.err;
  EXPECT_EQ(drain.code, 1);
  for (const std::string& text : {jobs.out, jobs.err, drain.out, drain.err}) {
    EXPECT_EQ(config::plain_lines(text), text);
  }
  EXPECT_THAT(jobs.out, AllOf(HasSubstr("?[2J"), HasSubstr("??2J"), HasSubstr("mod?le")));
}

TEST_F(Ctl, TakesNoCommandsForATerminalFromItsDaemonEither) {
  harness_.diagnosis.mutable_here()->set_name("\x1b[2J");
  harness_.diagnosis.add_others()->set_name(
      "\xc2\x9b"
      "2J");
  const Ran ran = run({"status", "--all"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("?[2J"), HasSubstr("??2J")));
  EXPECT_EQ(config::plain_lines(ran.out), ran.out);
}

TEST_F(Ctl, DoctorSeesAWrongFileThoughItsParentIgnoredChildren) {
  const std::string file = write_file("typo.yaml", "polcy: {}\n");
  const Ran ran = run({"doctor", "--config", file}, {.ignores_children = true});
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("polcy")) << ran.err;
}

TEST_F(Ctl, ListsJobsPeersTensorsCodecsAndCounters) {
  EXPECT_THAT(run({"jobs"}).out, HasSubstr("JOB     COMMUNICATOR   UID  STATE    RANKS"));
  EXPECT_THAT(run({"jobs"}).out,
              ContainsRegex("CODEC +GRADIENTS +SENT +EPOCH +POLICY +TENSORS +GROUPS\n"));
  EXPECT_THAT(run({"jobs"}).out, ContainsRegex(" 4\\.0 MiB +1\\.0 MiB +3 +1 +1 +1\n"));
  EXPECT_THAT(run({"jobs"}).out, HasSubstr("resnet/dp: rank 3 on machine 1 is 12.3 s late\n"));
  EXPECT_THAT(run({"jobs", "-j", "bert"}).out, Not(HasSubstr("resnet")));
  EXPECT_THAT(run({"peers"}).out, HasSubstr("bert    node3  10.0.0.3:7070        1  lost"));
  EXPECT_THAT(
      run({"tensors", "-j", "bert"}).out,
      AllOf(ContainsRegex("CODEC +TENSORS +ELEMENTS +SHARE\nmaxmin:4[^\n]* +1 +4,096  100.00 %\n"),
            ContainsRegex("layer.0.weight +fp32 +4,096 +maxmin:4[^\n]*\\[64, 64\\]\n")));
  EXPECT_THAT(run({"codecs"}).out, ContainsRegex("maxmin +bits 1 to 8"));
  EXPECT_THAT(run({"codecs"}).out, HasSubstr("the default: 4 bits for most models"));
  const std::string counters = run({"counters"}).out;
  EXPECT_THAT(counters, HasSubstr("gradient_bytes"));
  EXPECT_THAT(counters, Not(HasSubstr("steps_failed")));
}

TEST_F(Ctl, ShowsWhatTheRecorderRemembers) {
  using scheduler::EventKind;
  harness_.port.show_events({{.time_ns = 1'000, .kind = EventKind::kready, .communicator = 9},
                             {.time_ns = 2'000,
                              .step = 12,
                              .kind = EventKind::kencode,
                              .communicator = 3,
                              .group = 1,
                              .a = 4096,
                              .b = 1'500},
                             {.time_ns = 3'000,
                              .step = 5,
                              .kind = EventKind::ksent,
                              .communicator = 3,
                              .group = scheduler::Event::kCall,
                              .peer = 1,
                              .a = 80,
                              .b = 2}});
  const std::string text = run({"events"}).out;
  EXPECT_THAT(text, ContainsRegex("TIME +COMMUNICATOR +EVENT +STEP +GROUP +WHO +VALUES\n"));
  EXPECT_THAT(text, ContainsRegex("..:..:..\\....... +#9 +ready\n"));
  EXPECT_THAT(text, ContainsRegex("bert/dp +encode +12 +1 +4.0 KiB, 1.5 us\n"));
  EXPECT_THAT(text, ContainsRegex("bert/dp +sent +call 5 +machine 1 +80 B, part 2\n"));
  EXPECT_THAT(run({"events", "-n", "1"}).out, Not(HasSubstr("encode")));
  EXPECT_THAT(run({"events", "-j", "resnet"}).out,
              HasSubstr("nothing is recorded of what you may see\n"));
  const std::string json = run({"events", "-o", "json"}).out;
  EXPECT_THAT(json, HasSubstr("\"next\": 3"));
  EXPECT_THAT(json, ContainsRegex("\"step\": null,\n +\"call\": 5,"));
}

TEST_F(Ctl, ShowsTheGroupsOfAPlanAndWhatModeAutoHasTried) {
  daemon::Snapshot snapshot = daemon::two_users();
  scheduler::CommunicatorSnapshot& bert = snapshot.communicators[2];
  bert.policy.mode = scheduler::PlanMode::kAuto;
  bert.searching = "settled";
  bert.trial_time = {.spent_ns = 1'500'000'000,
                     .allowed_ns = 1'200'000'000,
                     .elapsed_ns = 100'000'000'000,
                     .waits = true};
  bert.plan_notes = {{.epoch = 2,
                      .step = 12,
                      .name = "choose",
                      .verdict = "kept",
                      .predicted = 0.4,
                      .measured = 0.386,
                      .step_ns = 12.3e6},
                     {.name = "fp32", .verdict = "BUSY: machine 1 refuses"},
                     {.step = 57, .name = "search", .verdict = "steps take longer"}};
  harness_.port.show(snapshot);
  const std::string history = run({"plan", "history", "-j", "bert"}).out;
  EXPECT_THAT(history, HasSubstr("bert/dp: epoch 3, mode auto, "));
  EXPECT_THAT(history, HasSubstr("; the search is settled\n"));
  EXPECT_THAT(history, ContainsRegex("2 +12 +choose +40 % +39 % +12.3 ms +kept\n"));
  EXPECT_THAT(history, ContainsRegex("- +- +fp32 +- +- +- +BUSY: machine 1 refuses\n"));
  EXPECT_THAT(history, ContainsRegex("- +57 +search +- +- +- +steps take longer\n"));
  EXPECT_THAT(history,
              HasSubstr("\ntrials took 1.5 s more than the plan beside them, in 1 min of training "
                        "(allowed: 1.2 s, so the next one waits)\n"));
  EXPECT_THAT(history, ContainsRegex("EPOCH +STEP +BY +BECAUSE\n +2 +40 +- +-\n"));
  EXPECT_THAT(history, ContainsRegex("\n +3 +1000 +policy +alice: [^\n]*less\n"));
  EXPECT_THAT(run({"plan", "history"}).out,
              HasSubstr("plans follow from the policy alone (policy key mode)\n"));
  EXPECT_THAT(run({"plan", "show", "-j", "bert"}).out,
              ContainsRegex("GROUP +TENSORS +GRADIENTS +ENCODED +RATIO +COLLECTIVE +BECAUSE\n"));
  EXPECT_THAT(run({"plan", "history", "-o", "json", "-j", "bert"}).out,
              HasSubstr("\"verdict\": \"kept\""));
  EXPECT_EQ(run({"plan"}).code, 2);
}

TEST_F(Ctl, ExplainsAChoiceWithItsCostAndTheNextBest) {
  scheduler::Explanation priced{.measured_ns = 5.2e6, .others = {}, .by_default = true};
  priced.chosen = {.step_ns = 5e6, .daemon_ns = 1e6, .sent_bytes = 4096};
  priced.others = {{.codec = {.codec = 3, .bits = 8, .bucket = 512}, .step_ns = 5.5e6},
                   {.codec = {.codec = 1, .bucket = 512}, .step_ns = 7e6}};
  harness_.port.price(priced, {});
  const std::vector<std::string> explain = {"plan", "explain", "layer.0.weight", "-j", "bert"};
  const std::string text = run(explain).out;
  EXPECT_THAT(text, HasSubstr("because: default\n"));
  EXPECT_THAT(text, HasSubstr("(measured: 5.2 ms a step)"));
  EXPECT_THAT(text,
              HasSubstr("chosen: fp32 by scatter: a step takes 5.0 ms, a daemon works 1.0 ms, "
                        "a machine sends 4.0 KiB\n"));
  EXPECT_THAT(text, ContainsRegex("next best: maxmin:8[^\n]*5.5 ms"));
  EXPECT_THAT(text, HasSubstr("then: fp16"));
  harness_.port.price_nothing({StatusCode::kUNAVAILABLE, "node0 coordinates; ask there"});
  EXPECT_THAT(run(explain).out, HasSubstr("what it costs: node0 coordinates; ask there\n"));
  EXPECT_EQ(run({"plan", "explain", "nobody", "-j", "bert"}).code, 1);
}

TEST_F(Ctl, SimulatesARunningJob) {
  harness_.port.price({}, {.measured_ns = 5e6,
                           .now_ns = 5.1e6,
                           .now_bytes = 1 << 20,
                           .step_ns = 9e6,
                           .backward_ns = 2e6,
                           .sent_bytes = 1 << 18});
  const Ran ran =
      run({"plan", "simulate", "--set", "codec=maxmin:8", "--machines", "64", "-j", "bert"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("bert/dp: maxmin:8"));
  EXPECT_THAT(ran.out, ContainsRegex("now, measured +5.0 ms"));
  EXPECT_THAT(ran.out, ContainsRegex("now, predicted +5.1 ms +1.0 MiB"));
  EXPECT_THAT(ran.out, ContainsRegex("on 64 machines +9.0 ms +256.0 KiB"));
  EXPECT_THAT(run({"plan", "simulate", "--machines", "1", "-j", "bert"}).err,
              HasSubstr("between 2 and 4096"));
}

TEST_F(Ctl, SaysWhichMachinesAProfileIsOf) {
  scheduler::JobProfile profile{.others_heard = 2, .left_out = "machine 3: has gone"};
  profile.step.step_ns = 5e6;
  harness_.port.profiled(profile);
  const Ran ran = run({"plan", "profile", "-j", "bert"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("by the slowest of 3 machines that were heard\n"
                                 "without machine 3: has gone\n"));
  harness_.port.profiled(scheduler::JobProfile());
  EXPECT_THAT(run({"plan", "profile", "-j", "bert"}).out,
              Not(HasSubstr("machines that were heard")));
}

TEST_F(Ctl, PrintsARunningJobAsAModelForCgxsim) {
  using scheduler::TensorDesc;
  const std::vector<TensorDesc> table = {
      {.name = "head #1", .elements = 12, .shape = {3, 4}},
      {.name = "empty", .elements = 0, .shape = {0}},
      {.name = "head_#1", .dtype = DType::kBF16, .elements = 5, .shape = {}},
      {.name = "first", .elements = 7, .shape = {7}}};
  scheduler::JobProfile profile;
  profile.tensors = std::make_shared<const scheduler::TensorTable>(table);
  profile.step.step_ns = 5e6;
  profile.step.period_ns = 7.25e6;
  profile.step.arrival_ns = {1.5e6f, 1.5e6f, 2e6f, 0};
  profile.fit.conditions.link = {.ns_per_byte = 8, .trip_ns = 40e3};
  harness_.port.profiled(profile);
  EXPECT_EQ(run({"plan", "profile", "-j", "bert", "--model"}).out,
            "# bert/dp, as it was measured; one way takes 40.000us over a link of 1000mbit\n"
            "# 1 tensors are not fp32; cgxsim takes them for it\n"
            "model bert\n"
            "forward 2250.000us\n"
            "tensor first 7 0.000us\n"
            "tensor head__1 3x4 1500.000us\n"
            "tensor head__1_2 5 500.000us\n");
  const Ran json = run({"-o", "json", "plan", "profile", "-j", "bert", "--model"});
  EXPECT_EQ(json.code, 2);
  EXPECT_THAT(json.err, HasSubstr("--model prints a file for cgxsim"));
}

TEST_F(Ctl, PrintsJsonThatIsTheMessage) {
  const Ran ran = run({"-o", "json", "jobs"});
  v1::JobList jobs;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ran.out, &jobs).ok()) << ran.out;
  EXPECT_EQ(jobs.communicators_size(), 3);
  EXPECT_THAT(ran.out, HasSubstr("\"step\": 1199,"));
  EXPECT_THAT(run({"counters", "-o", "json"}).out, HasSubstr("\"steps_failed\""));
}

TEST_F(Ctl, AppliesAFileAndNamesTheStep) {
  const std::string file = write_file("p.yaml", "codec: maxmin:8,bucket=512\nwindow: 8\n");
  const Ran ran = run({"policy", "apply", "-j", "bert", file, "--reason", "test"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("bert/dp: policy version 2 takes effect at step 1201 on every rank"));
  EXPECT_THAT(ran.out,
              MatchesRegex("(.|\n)*codec +maxmin:4,bucket=512,stochastic +maxmin:8(.|\n)*"));
  EXPECT_THAT(ran.out, HasSubstr("\nepoch 4 is in force since step 1201\n"));
  EXPECT_EQ(harness_.port.changes().at(0).policy.window, 8u);
}

TEST_F(Ctl, TakesTheCommunicatorsOfAMachinesGpusForOne) {
  daemon::Snapshot snapshot = daemon::two_users();
  snapshot.communicators.push_back(snapshot.communicators[2]);
  snapshot.communicators[2].local_machine = 1;
  harness_.port.show(snapshot);
  const Ran ran = run({"policy", "apply", "-j", "bert", "--set", "window=9"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\nepoch 4 is in force since step 1201\n"));
}

TEST_F(Ctl, SaysThatAnAgreedPolicyWasSuperseded) {
  daemon::Snapshot snapshot = daemon::two_users();
  snapshot.communicators[2].epoch = 10;
  harness_.port.show(snapshot);
  harness_.port.show_switches(false);
  const Ran ran = run({"policy", "apply", "-j", "bert", "--set", "window=9"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "cgxctl: epoch 4 was superseded by epoch 10\n");
}

TEST_F(Ctl, WaitsForAnAgreedPolicyAsLongAsItIsAsked) {
  harness_.port.show_switches(false);
  const Ran ran = run({"policy", "apply", "-j", "bert", "--set", "window=9", "--wait", "0.2"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("epoch 4 is agreed and not in force yet: training is at step "));
}

TEST_F(Ctl, SetsKeysOnTopOfTheRunningPolicy) {
  daemon::Snapshot snapshot = daemon::two_users();
  snapshot.communicators[2].policy.weight = 7;
  harness_.port.show(snapshot);
  const Ran ran =
      run({"policy", "apply", "-j", "bert", "--set", "window=9", "-s", "group_bytes=1 MiB"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto asked = harness_.port.changes().at(0).policy;
  EXPECT_EQ(asked.window, 9u);
  EXPECT_EQ(asked.weight, 7u);
  EXPECT_EQ(asked.group_bytes, 1u << 20);
}

TEST_F(Ctl, PrintsAPolicyThatCanBeAppliedAgain) {
  const Ran got = run({"policy", "get", "-j", "bert"});
  EXPECT_THAT(got.out, HasSubstr("# bert/dp, policy version 1, epoch 3\n"));
  const std::string file = write_file("p.yaml", got.out);
  EXPECT_THAT(run({"policy", "diff", "-j", "bert", file}).out, HasSubstr("no key differs\n"));
}

TEST_F(Ctl, ShowsWhatADifferenceIs) {
  const Ran ran = run({"policy", "diff", "-j", "bert", "--set", "window=9"});
  EXPECT_EQ(ran.out, "bert/dp, policy version 1\nKEY     FROM  TO\nwindow  4     9\n");
  EXPECT_TRUE(harness_.port.changes().empty());
}

// bert's: configured with a rule, then changed by somebody; its tensor travels exactly.
daemon::Snapshot exact_bert() {
  daemon::Snapshot snapshot = daemon::two_users();
  scheduler::CommunicatorSnapshot& bert = snapshot.communicators[2];
  scheduler::Policy configured;
  configured.default_codec = CodecSpec{.codec = 0, .bucket = 512};
  configured.weight = 5;
  configured.rules = {{"layer", configured.default_codec}};
  bert.policy = configured;
  bert.policy.window = 9;
  bert.policy.note = {"uid 7 on node1", "wide", 1'700'000'000'000'000'000, true};
  bert.policy_version = 2;
  bert.tensors[0].codec = configured.default_codec;
  bert.policies = {std::make_shared<const scheduler::PolicyVersion>(
                       scheduler::PolicyVersion{1, 3, 1000, configured}),
                   std::make_shared<const scheduler::PolicyVersion>(
                       scheduler::PolicyVersion{2, 4, 1100, bert.policy})};
  return snapshot;
}

TEST_F(Ctl, FillsAFileFromTheConfiguredPolicy) {
  harness_.port.show(exact_bert());
  const auto apply = [&](const std::string& text) {
    return run({"policy", "apply", "-j", "bert", write_file("p.yaml", text)});
  };
  EXPECT_EQ(apply("group_bytes: 1 MiB\n").code, 0);
  EXPECT_EQ(apply("rules: []\n").code, 0);
  EXPECT_EQ(run({"policy", "apply", "--set", "window=3", "-j", "bert"}).code, 0);
  const auto asked = harness_.port.changes();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].policy.weight, 5u);
  EXPECT_EQ(asked[0].policy.window, 4u);
  EXPECT_EQ(asked[0].policy.rules.size(), 1u);
  EXPECT_EQ(asked[0].policy.default_codec.codec, 0);
  EXPECT_TRUE(asked[1].policy.rules.empty());
  EXPECT_EQ(asked[2].policy.rules.size(), 1u);
  EXPECT_TRUE(asked[2].policy.note.keep);
}

TEST_F(Ctl, RefusesAPolicyThatSaysNothing) {
  for (const char* text : {"", "# window: 3\n", "{}", "rules:\n"}) {
    const std::string file = write_file("p.yaml", text);
    const Ran ran = run({"policy", "apply", "-j", "bert", file, "--set", "window=3"});
    EXPECT_EQ(ran.code, 1) << text;
    EXPECT_EQ(ran.err,
              "cgxctl: " + file + ": says nothing; a policy file gives at least one key\n");
  }
  EXPECT_TRUE(harness_.port.changes().empty());
}

TEST_F(Ctl, CompressesWhatTravelsExactlyOnlyWhereThatIsAllowed) {
  harness_.port.show(exact_bert());
  std::vector<std::string> command{"policy", "apply",    "-j",    "bert",
                                   "--set",  "rules=[]", "--set", "codec=maxmin:4"};
  const Ran refused = run(command);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("compresses 1 tensors with 4096 elements that travel exactly "
                                     "now (layer.0.weight); allow it with --lossy"));
  EXPECT_TRUE(harness_.port.changes().empty());
  command.push_back("--lossy");
  EXPECT_THAT(run(command).out, HasSubstr("this compresses 1 tensors with 4,096 elements"));
  EXPECT_EQ(harness_.port.changes().size(), 1u);
}

TEST_F(Ctl, ShowsTheHistoryAndGoesBack) {
  harness_.port.show(exact_bert());
  const std::string text = run({"policy", "history", "-j", "bert"}).out;
  EXPECT_THAT(text, ContainsRegex("1 +3 +1000 +- +the configuration"));
  EXPECT_THAT(text, ContainsRegex("2 +4 +1100 +2023-11-1[45] ..:..:.. +uid 7 on node1 +wide .kept "
                                  "for the job's name. +window: 4 -> 9"));
  EXPECT_EQ(run({"policy", "rollback", "-j", "bert"}).code, 0);
  ASSERT_EQ(harness_.port.changes().size(), 1u);
  EXPECT_EQ(harness_.port.changes()[0].policy.window, 4u);
  EXPECT_EQ(harness_.port.changes()[0].policy.note.reason, "rollback to version 1");
  EXPECT_THAT(run({"policy", "rollback", "-j", "bert", "7"}).err,
              HasSubstr("there is no version 7; the history:"));
}

TEST_F(Ctl, ShowsWhatAPolicyWouldDo) {
  harness_.port.show(exact_bert());
  const std::string text = run({"policy", "check", "-j", "bert", "--set", "codec=maxmin:4", "--set",
                                "rules=[{match: nowhere, codec: fp32}]"})
                               .out;
  EXPECT_THAT(text, HasSubstr("warning: this compresses 1 tensors"));
  EXPECT_THAT(text, HasSubstr("warning: rule 1 (nowhere) matches no tensor\n"));
  EXPECT_THAT(text, ContainsRegex("fp32[^\n]* +1 +16.0 KiB +0 +0 B\n"));
  EXPECT_THAT(text, ContainsRegex("maxmin:4[^\n]* +0 +0 B +1 +2.[0-9] KiB\n"));
  EXPECT_THAT(text, ContainsRegex("total, of 16.0 KiB +1 +16.0 KiB +1 +2.[0-9] KiB\n"));
}

TEST_F(Ctl, ChecksWithoutApplying) {
  const Ran ran =
      run({"policy", "check", "-j", "bert", "--set", "codec=maxmin:2,bucket=512,feedback"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("warning: maxmin:2"));
  EXPECT_THAT(ran.out, HasSubstr("bert/dp would accept it and reserve 1.0 MiB\n"));
  EXPECT_TRUE(harness_.port.changes().at(0).dry_run);
}

TEST_F(Ctl, ExitsWith1WhenTheAnswerIsNo) {
  EXPECT_EQ(run({"jobs", "-j", "gone"}).code, 1);
  EXPECT_EQ(
      run({"jobs", "-j", "gone"}).err,
      "cgxctl: NOT_FOUND: no communicator gone/*; there are resnet/dp of uid 1000, resnet/tp of "
      "uid 1000, bert/dp of uid 2000\n");
  const Ran ran = run({"policy", "apply", "-j", "bert", "--set", "codec=zip:9"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("INVALID_ARGUMENT: codec: "));
  const std::string file = write_file("p.yaml", "windw: 3\n");
  EXPECT_EQ(run({"policy", "apply", "-j", "bert", file}).err,
            "cgxctl: " + file + ":1: windw: no such key; did you mean window?\n");
}

TEST_F(Ctl, ExitsWith2OnWrongUsage) {
  EXPECT_EQ(run({}).code, 2);
  EXPECT_EQ(run({"dance"}).code, 2);
  EXPECT_EQ(run({"-o", "xml", "status"}).code, 2);
  EXPECT_EQ(run({"policy"}).code, 2);
  EXPECT_EQ(run({"policy", "apply"}).code, 2);
  EXPECT_EQ(run_ctl({"--address", "nonsense", "status"}).code, 2);
  EXPECT_EQ(run_ctl({"--address", "localhost:1", "status"}).code, 2);  // without certificates
}

TEST_F(Ctl, NamesTheWordItDoesNotUnderstandAndWhatWasMeant) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"statu"}, "cgxctl: no command statu; did you mean status?\n"},
      {{"polcy", "apply"}, "cgxctl: no command polcy; did you mean policy?\n"},
      {{"dance"}, "cgxctl: no command dance; there are status, jobs, plan, tensors, "},
      {{"policy"}, "cgxctl policy: say which: get, check, diff, apply, history, rollback\n"},
      {{"policy", "aply"}, "cgxctl policy: no command aply; did you mean apply?\n"},
      {{"policy", "apply", "--losy"},
       "cgxctl policy apply: no option --losy; did you mean --lossy?\n"},
      {{"status", "--adress", "/x"},
       "cgxctl status: no option --adress; did you mean --address?\n"},
      {{"status", "now"}, "cgxctl status: takes no \"now\" "},
      {{"events", "--last", "many"},
       "cgxctl events: --last: \"many\" is not a whole number, 0 or more\n"},
      {{"--timeout", "0", "status"}, "--timeout: 0 is no number of seconds above 0\n"},
      {{"--timeout", "nan", "status"}, "--timeout: nan is no number of seconds above 0\n"},
      {{"--timeout", "inf", "status"}, "--timeout: inf is no number of seconds above 0\n"},
      {{"drain", "--limit", "nan"}, "--limit: nan is no number of seconds\n"},
      {{"drain", "--wait", "nan"}, "--wait: nan is no number of seconds\n"},
      {{"policy", "apply", "--wait", "inf"}, "--wait: inf is no number of seconds\n"},
  };
  for (const auto& [arguments, text] : cases) {
    const Ran ran = run_ctl(arguments);
    EXPECT_EQ(ran.code, 2) << text;
    EXPECT_THAT(ran.err, HasSubstr(text));
    EXPECT_THAT(ran.err, HasSubstr(" --help for more information.\n"));
  }
}

TEST_F(Ctl, ExitsWith0ForHelpAndVersion) {
  EXPECT_EQ(run_ctl({"--help"}).code, 0);
  EXPECT_EQ(run_ctl({"policy", "apply", "--help"}).code, 0);
  EXPECT_THAT(run_ctl({"--version"}).out,
              MatchesRegex("cgxctl [0-9.]+( .revision [0-9a-f]+(-modified)?.)?\n"
                           "speaks control cgx.v1\n"));
}

TEST_F(Ctl, ExitsWith3AndNamesTheAddressTried) {
  const Ran ran = run_ctl({"--address", "unix:/nonexistent/c.sock", "status"});
  EXPECT_EQ(ran.code, 3);
  EXPECT_EQ(ran.err,
            "cgxctl: no daemon answers at the socket of --address, /nonexistent/c.sock: No such "
            "file or directory\n");
}

TEST_F(Ctl, FindsTheDaemonByVariableOrRunDirectory) {
  const RunAs by_variable{.environment = {"CGX_CONTROL=" + harness_.socket_path()}};
  EXPECT_EQ(run_ctl({"status"}, by_variable).code, 0);
}

TEST_F(Ctl, FindsTheDaemonThatTrainersUse) {
  const std::string control = harness_.socket_path();
  const std::string folder = control.substr(0, control.rfind('/') + 1);
  const auto status = [](const std::string& trainers) {
    return run_ctl({"status"}, {.environment = {"CGX_SOCKET=" + trainers}});
  };
  std::filesystem::create_symlink(control, folder + "mine-control.sock");
  EXPECT_EQ(status(folder + "mine.sock").code, 0);
  const std::string gone = folder + "gone.sock";
  EXPECT_EQ(status(gone).code, 3);
  EXPECT_EQ(status(gone).err,
            "cgxctl: no daemon answers at the socket of operators beside CGX_SOCKET's, " + folder +
                "gone-control.sock: No such file or directory\n");
  write_file("gone.sock", "");  // a daemon that has its control socket elsewhere
  EXPECT_THAT(status(gone).err, Not(HasSubstr("CGX_SOCKET")));
}

TEST_F(Ctl, GivesUpAtItsTimeout) {
  harness_.port.hold(true);
  const Ran ran = run({"--timeout", "0.1", "policy", "apply", "-j", "bert", "--set", "window=9"});
  harness_.port.hold(false);
  EXPECT_EQ(ran.code, 3);
  EXPECT_EQ(ran.err, "cgxctl: the daemon at " + harness_.socket_path() +
                         " has not answered within 0.1 s (--timeout)\n");
}

TEST_F(Ctl, WaitsLongWhereItsTimeoutIsBeyondAllClocks) {
  for (const char* seconds : {"1e13", "1e300"}) {
    const Ran ran = run({"--timeout", seconds, "status"});
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
}

// Other users: only root can become one

class CtlOfOtherUsers : public Ctl {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as other users";
  }
};

TEST_F(CtlOfOtherUsers, OwnersSeeAndChangeTheirJob) {
  EXPECT_THAT(run({"status"}, {.uid = 2000}).out, HasSubstr("you are owner"));
  EXPECT_THAT(run({"jobs"}, {.uid = 2000}).out, HasSubstr("2 more of other users\n"));
  EXPECT_EQ(run({"policy", "apply", "--set", "window=5"}, {.uid = 2000}).code, 0);
  EXPECT_THAT(daemon::read_file(harness_.audit_path() + ".users"),
              HasSubstr("\"caller\":\"uid 2000\""));
}

TEST_F(CtlOfOtherUsers, NobodyElseSeesOrChangesIt) {
  const Ran ran = run({"policy", "apply", "-j", "bert", "--set", "window=5"}, {.uid = 1000});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("NOT_FOUND: no communicator bert/*"));
  EXPECT_EQ(run({"jobs"}, {.uid = 3000}).out, "no jobs\n3 more of other users\n");
  EXPECT_TRUE(harness_.port.changes().empty());
}

TEST_F(CtlOfOtherUsers, FindsTheUsersOwnDaemonAndDistrustsAForeignDirectory) {
  const OpenDirectory runtime;
  const std::string directory = runtime / "cgxd";
  ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  ASSERT_EQ(::symlink(harness_.socket_path().c_str(), (directory + "/control.sock").c_str()), 0);
  const RunAs user{.uid = 2000, .environment = {"XDG_RUNTIME_DIR=" + runtime / ""}};
  EXPECT_EQ(run_ctl({"status"}, user).code, 0);

  ASSERT_EQ(::chown(directory.c_str(), 1000, 1000), 0);
  const Ran ran = run_ctl({"status"}, user);
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("belongs to user 1000, not to user 2000 or root"));
}

}  // namespace
}  // namespace cgx::ctl
