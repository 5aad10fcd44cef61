#include "daemon/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/policy/policy_message.h"

namespace cgx::daemon {
namespace {

v1::Config config_of(const std::string& text) {
  v1::Config config;
  const Status loaded = config::load_text(text, "file", config_checks(), config);
  EXPECT_TRUE(loaded.ok()) << loaded.to_string();
  config::fill_defaults(config);
  return config;
}

std::vector<std::string> keys(const std::vector<config::KeyDifference>& differences) {
  std::vector<std::string> keys;
  for (const config::KeyDifference& one : differences) keys.push_back(one.key);
  return keys;
}

const char kEverywhere[] =
    "run_directory: /elsewhere\n"
    "client: {socket_mode: '0666'}\n"
    "mesh: {listen: '127.0.0.1:7070'}\n"
    "control: {operators_group: daemon}\n"
    "limits: {sessions: 3, communicators: 4, tensors: 5, plan_bytes: 1 MiB}\n"
    "timeouts: {handshake_ms: 1 s, heartbeat_ms: 600, peer_lost_ms: 5 s, stalled_ms: 11 s,\n"
    "           late_warning_ms: 6 s, communicator_ms: 1 h, prepare_ms: 3 s, join_ms: 9 s,\n"
    "           drain_ms: 7 s}\n"
    "waiting: {spin_us: 1}\n"
    "log: {level: debug, format: json}\n"
    "policy: {codec: fp32, rules: [{match: a, codec: fp16}], window: 9}\n"
    "jobs: [{match: nightly, weight: 7}]\n";

TEST(Reload, TakesOverWhatItSaysAndLeavesTheRest) {
  const v1::Config running = config_of(""), changed = config_of(kEverywhere);
  const Reload reload = plan_reload(running, changed);
  EXPECT_EQ(keys(config::diff(running, reload.effective)), keys(reload.taken));
  EXPECT_EQ(keys(config::diff(reload.effective, changed)), reload.waiting);
  EXPECT_THAT(keys(reload.taken),
              ::testing::IsSupersetOf({"policy.codec", "policy.window", "jobs[0]", "log.level",
                                       "limits.plan_bytes", "timeouts.drain_ms"}));
  EXPECT_THAT(reload.waiting,
              ::testing::UnorderedElementsAre("run_directory", "client.socket_mode", "mesh.listen",
                                              "control.operators_group", "limits.sessions",
                                              "timeouts.handshake_ms", "timeouts.join_ms",
                                              "waiting.spin_us", "log.format"));
}

TEST(Reload, OfTheSameChangesNothing) {
  const Reload reload = plan_reload(config_of(kEverywhere), config_of(kEverywhere));
  EXPECT_TRUE(reload.taken.empty());
  EXPECT_TRUE(reload.waiting.empty());
}

const char kExact[] =
    "limits: {plan_bytes: 64 GiB}\n"
    "control: {operators_group: daemon}\n"
    "policy: {codec: fp32, window: 9, rules: [{match: head, codec: fp32}]}\n";

// What a reload of `text` says to a daemon that runs kExact; empty: it takes it.
std::string refusal(const std::string& text, const std::string& running = kExact) {
  return check_whole(config_of(running), {config_of(text), "c.yaml", text}).message();
}

TEST(Reload, RefusesAFileThatSaysNothingAndNamesWhatItWouldLose) {
  for (const char* text : {"", "\n", "# all\n# comments\n"}) {
    EXPECT_EQ(refusal(text),
              "c.yaml: says nothing (was the file cut off?), but limits.plan_bytes, policy.codec, "
              "policy.rules[0], policy.window, control.operators_group would be as by default; "
              "where that is meant, write {}");
  }
  EXPECT_EQ(refusal("", ""), "");
  EXPECT_EQ(refusal("# nothing\n", "# nothing\n"), "");
  EXPECT_EQ(refusal("{}", "limits: {plan_bytes: 64 GiB}"), "");
}

TEST(Reload, RefusesASectionThatEndsBeforeItsKeys) {
  const std::string policy =
      "policy: {codec: fp32, window: 9, rules: [{match: head, codec: fp32}]}\n";
  EXPECT_EQ(refusal(policy + "limits:\n"),
            "c.yaml:2: limits: has nothing below it (was the file cut off?), but limits.plan_bytes "
            "would be as by default; write the keys, or leave out limits");
  EXPECT_EQ(refusal(policy + "metrics:\nlimits: {plan_bytes: 64 GiB}\n"), "");
  EXPECT_EQ(refusal(policy), "");
  EXPECT_EQ(refusal("policy:\n  codec: fp32\n  rules:\n"),
            "c.yaml:3: policy.rules: has nothing below it (was the file cut off?), but "
            "policy.rules[0] would be as by default; write the keys, or leave out policy.rules");
}

TEST(Reload, CompressesWhatTravelsExactlyOnlyWhereTheFileNamesACodec) {
  EXPECT_EQ(refusal("limits: {plan_bytes: 64 GiB}\n"),
            "c.yaml: policy.codec: is no longer written (was the file cut off?), but what travels "
            "exactly (fp32) would be compressed; where that is meant, write policy.codec: "
            "maxmin:4,bucket=512,stochastic");
  EXPECT_NE(refusal("{}"), "");
  EXPECT_EQ(refusal("policy: {codec: fp32}"), "");
  const std::string meant = "policy: {codec: fp16, rules: [{match: tail, codec: fp32}]}";
  EXPECT_EQ(refusal(meant), "");
  EXPECT_THAT(made_lossy(config_of(kExact), config_of(meant)),
              ::testing::ElementsAre("policy.codec: fp32 -> fp16",
                                     "policy.rules (match head): fp32 -> fp16"));
  EXPECT_THAT(made_lossy(config_of(meant), config_of(kExact)), ::testing::IsEmpty());
}

}  // namespace
}  // namespace cgx::daemon
