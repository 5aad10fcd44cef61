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

}  // namespace
}  // namespace cgx::daemon
