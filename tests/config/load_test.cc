#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "config/config.h"
#include "proto/messages/config.pb.h"

namespace cgx::config {
namespace {

using ::testing::HasSubstr;

Status load(std::string_view text, v1::Config& config) {
  return load_text(text, "c.yaml", Checks{}, config);
}

std::string error_of(std::string_view text) {
  v1::Config config;
  const Status status = load(text, config);
  EXPECT_FALSE(status.ok()) << text;
  return status.message();
}

TEST(Load, TakesAnEmptyFile) {
  v1::Config config;
  EXPECT_TRUE(load("", config).ok());
  EXPECT_TRUE(load("# nothing\n", config).ok());
  EXPECT_TRUE(load("limits:\npolicy:\n  rules:\n", config).ok());
}

TEST(Load, KeepsWhatWasSaidAndDefaultsTheRest) {
  v1::Config config;
  const Status status = load(
      "lane: scalar\n"
      "transport: {ucx_transports: [tcp, rc], segment_bytes: 1 MiB}\n"
      "policy:\n"
      "  codec: maxmin:8\n"
      "  raw_one_dimensional: false\n"
      "  rules:\n"
      "    - {match: attention, codec: fp16}\n"
      "    - match: '\\.bias$'\n"
      "      codec: raw\n",
      config);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_FALSE(config.policy().has_window());
  fill_defaults(config);

  EXPECT_EQ(config.lane(), "scalar");
  EXPECT_EQ(config.transport().ucx_transports_size(), 2);
  EXPECT_EQ(config.transport().segment_bytes(), 1u << 20);
  EXPECT_EQ(config.policy().codec(), "maxmin:8");
  EXPECT_FALSE(config.policy().raw_one_dimensional());
  ASSERT_EQ(config.policy().rules_size(), 2);
  EXPECT_EQ(config.policy().rules(1).match(), "\\.bias$");
  EXPECT_EQ(config.policy().window(), 4u);
  EXPECT_EQ(config.timeouts().peer_lost_ms(), 4'000u);
  EXPECT_EQ(config.timeouts().communicator_ms(), 1'800'000u);
  EXPECT_EQ(config.waiting().spin_us(), 20u);
  EXPECT_EQ(config.mesh().trusted_networks_size(), 2);
}

TEST(Load, NamesFileLineKeyValueAndRange) {
  EXPECT_EQ(error_of("lane: auto\ntransport:\n  segment_bytes: 9 GiB\n"),
            "c.yaml:3: transport.segment_bytes: 9 GiB is not allowed: 16 KiB to 16 MiB");
  EXPECT_EQ(error_of("log:\n  level: loud\n"),
            "c.yaml:2: log.level: \"loud\" is not allowed: one of debug, info, warning, error");
  EXPECT_EQ(error_of("policy:\n  raw_one_dimensional: yes\n"),
            "c.yaml:2: policy.raw_one_dimensional: \"yes\" is neither true nor false");
}

TEST(Load, SuggestsTheKeySomebodyMeant) {
  EXPECT_EQ(error_of("policy:\n  windw: 3\n"),
            "c.yaml:2: policy.windw: no such key; did you mean window?");
  EXPECT_EQ(error_of("log:\n  colour: true\n"),
            "c.yaml:2: log.colour: no such key; there are level, format");
}

TEST(Load, ReportsEveryProblemAtOnce) {
  EXPECT_EQ(error_of("lan: auto\nwaiting:\n  spin_us: 2 s\nlog: loud\n"),
            "c.yaml:1: lan: no such key; did you mean lane?\n"
            "c.yaml:3: waiting.spin_us: 2 s is not allowed: 0 us to 1 ms\n"
            "c.yaml:4: log: expects keys below it (level, format), not a value");
}

TEST(Load, NamesTheSectionOfAKeyThatStandsOutsideIt) {
  EXPECT_EQ(error_of("codec: fp32\n"), "c.yaml:1: codec: no such key; did you mean policy.codec?");
  EXPECT_THAT(error_of("nothing: 1\n"), HasSubstr("no such key; there are run_directory, "));
}

TEST(Load, RefusesWrongShapes) {
  EXPECT_EQ(error_of("lane: [a, b]\n"), "c.yaml:1: lane: expects one value: auto or a lane's name");
  EXPECT_EQ(error_of("lane:\n"), "c.yaml:1: lane: has no value: auto or a lane's name");
  EXPECT_EQ(error_of("mesh: {network: x}\n"), "c.yaml:1: mesh.network: expects a list: [x]");
  EXPECT_EQ(error_of("policy: {rules: {a: b}}\n"),
            "c.yaml:1: policy.rules: expects a list, each element with match, codec, small");
  EXPECT_EQ(error_of("lane: a\nlane: b\n"), "c.yaml:2: lane: is given twice");
  EXPECT_THAT(error_of("- lane\n"), HasSubstr("expects keys below it (run_directory, "));
  EXPECT_EQ(error_of("? [a]\n: b\n"), "c.yaml:1: has a key that is not a word");
  EXPECT_EQ(error_of("lane: a\n---\nlane: b\n"),
            "c.yaml: something follows the end of the YAML document");
  EXPECT_FALSE(error_of(",\x8c>").empty());  // yaml-cpp's LoadAll() never returns
  EXPECT_THAT(error_of("lane: [a\n"), HasSubstr("not YAML"));
  EXPECT_THAT(error_of("policy:\n\tcodec: fp32\n"), HasSubstr("indented with spaces, not tabs"));
}

TEST(Load, ChecksWhatTextsMean) {
  EXPECT_THAT(error_of("control: {socket_mode: 999}"), HasSubstr("octal permission bits"));
  EXPECT_THAT(error_of("run_directory: run"), HasSubstr("\"run\" is not an absolute path"));
  EXPECT_THAT(error_of("mesh: {listen: '::1:70'}"), HasSubstr("needs brackets"));
  EXPECT_THAT(error_of("mesh: {listen: 'host'}"), HasSubstr("host:port"));
  EXPECT_THAT(error_of("mesh: {trusted_networks: [10.0.0.0/33]}"), HasSubstr("a network such as"));
  for (const char* ports : {"9-1", "0-9", "9-", "-9", "70000", "a"}) {
    EXPECT_THAT(error_of(std::string("transport: {ports: ") + ports + "}"),
                HasSubstr("a range of ports"));
  }
  EXPECT_THAT(error_of("transport: {ucx_transports: [shm]}"), HasSubstr("one of tcp, "));
  EXPECT_THAT(error_of("jobs: [{match: '('}]"), HasSubstr("a regular expression"));
  EXPECT_THAT(error_of("jobs: [{match: '(a)\\1'}]"), HasSubstr("no back-references"));
  EXPECT_THAT(error_of("lane: \"a\\x01\""), HasSubstr("without control characters"));
}

// Of a pod's address nobody knows the family before it is there.
TEST(Load, TakesAnAddressOfEitherFamilyInBrackets) {
  for (const char* address : {"[10.1.2.3]:7070", "[fd00::3]:7070"}) {
    v1::Config config;
    EXPECT_TRUE(load("mesh: {listen: '" + std::string(address) + "'}", config).ok()) << address;
  }
  EXPECT_THAT(error_of("mesh: {listen: '[host]:70'}"), HasSubstr("host:port"));
}

TEST(Load, NamesTheElementOfAList) {
  EXPECT_EQ(error_of("policy:\n  rules:\n    - {match: a, codec: raw}\n    - {match: b}\n"),
            "c.yaml:4: policy.rules[1].codec: is missing: a codec; see cgxctl codecs");
}

TEST(Load, FindsContradictionsBetweenKeys) {
  EXPECT_EQ(error_of("timeouts:\n  heartbeat_ms: 3 s\n"),
            "c.yaml:1: timeouts.peer_lost_ms: 4 s is less than twice timeouts.heartbeat_ms, 3 s");
  EXPECT_THAT(error_of("control: {listen: '10.0.0.1:7071'}"), HasSubstr("no TCP without TLS"));
  EXPECT_THAT(error_of("mesh: {tls: {ca_file: /ca}}"), HasSubstr("or none of them"));
  EXPECT_THAT(error_of("mesh: {key_file: /k, cluster_key: 0123456789abcdef}"),
              HasSubstr("keep one of them"));
}

TEST(Load, TakesOnePortForARange) {
  v1::Config config;
  EXPECT_TRUE(load("transport: {ports: 20000}", config).ok());
}

TEST(Load, RefusesASealWhereUcxWouldIgnoreIt) {
  for (const char* seal : {"encrypt", "frame"}) {
    const std::string sealed = std::string(", seal: ") + seal + "}";
    EXPECT_EQ(error_of("transport: {name: ucx" + sealed),
              "c.yaml:1: transport.seal: " + std::string(seal) +
                  " needs tcp, but transport.name chooses UCX, which authenticates and encrypts "
                  "nothing");
    EXPECT_THAT(error_of("transport: {ucx_transports: [rc]" + sealed),
                HasSubstr("transport.ucx_transports chooses UCX"));
    v1::Config config;
    EXPECT_TRUE(load("transport: {name: tcp, ucx_transports: [rc]" + sealed, config).ok());
    EXPECT_TRUE(load("transport: {name: auto" + sealed, config).ok());
  }
}

TEST(Load, TakesTheSectionPolicyOffTheHeadOfAPolicyFile) {
  v1::Policy policy;
  EXPECT_THAT(load_text("policy:\n  window: 3\n", "p", {}, policy).message(),
              HasSubstr("p:1: policy: no such key; write the keys below it (codec, rules, "));
}

TEST(Load, NamesTheJobWhoseWeightIsAboveTheLimit) {
  EXPECT_EQ(error_of("jobs:\n  - {match: a, weight: 2}\n  - {match: b, weight: 17}\n"),
            "c.yaml:3: jobs[1].weight: 17 is above limits.weight, 16");
}

TEST(Load, AsksTheCallerAboutCodecs) {
  Checks checks;
  checks.codec = [](std::string_view text) {
    return text == "good" ? Status() : invalid_argument("no codec " + std::string(text));
  };
  v1::Policy policy;
  EXPECT_TRUE(load_text("codec: good", "p", checks, policy).ok());
  EXPECT_EQ(load_text("codec: bad", "p", checks, policy).message(), "p:1: codec: no codec bad");
}

TEST(Load, NeverShowsASecretInAnError) {
  EXPECT_EQ(error_of("mesh: {cluster_key: geheim}").find("geheim"), std::string::npos);
}

TEST(Load, BoundsWhatItReads) {
  EXPECT_THAT(error_of(std::string((1 << 20) + 1, '#')), HasSubstr("at most 1048576"));
  std::string many = "mesh:\n  advertise:\n";
  for (int i = 0; i < 4097; ++i) many += "    - a:1\n";
  EXPECT_THAT(error_of(many), HasSubstr("at most 4096"));
  EXPECT_THAT(error_of("lane: " + std::string(5'000, 'x')), HasSubstr("longer than 4096 bytes"));
  EXPECT_FALSE(error_of("lane: " + std::string(100'000, '[')).empty());
}

std::string empty(std::string_view text) {
  std::string all;
  for (const EmptyPlace& place : empty_places(text)) {
    all += "[" + place.key + "]" + std::to_string(place.line);
  }
  return all;
}

TEST(Load, FindsWhereNothingIsWritten) {
  for (const char* text : {"", "\n \n", "# nothing\n", "---\n"})
    EXPECT_EQ(empty(text), "[]1") << text;
  EXPECT_EQ(empty("limits:\npolicy:\n  # codec: fp32\n  rules:\n"), "[limits]1[policy.rules]4");
  EXPECT_EQ(empty("mesh: {tls: }\njobs:\n"), "[mesh.tls]1[jobs]2");
  for (const char* text : {"{}", "policy: {}", "policy: {rules: []}", "lane: auto"}) {
    EXPECT_EQ(empty(text), "") << text;
  }
}

TEST(Load, TellsWhetherAKeyIsWritten) {
  const std::string text = "policy:\n  codec: fp32\n  rules: []\n  menu:\nlimits:\n";
  for (const char* key : {"policy", "policy.codec", "policy.rules"}) {
    EXPECT_TRUE(says(text, key)) << key;
  }
  for (const char* key : {"policy.menu", "policy.window", "limits", "limits.tensors", "mesh.tls"}) {
    EXPECT_FALSE(says(text, key)) << key;
  }
  EXPECT_FALSE(says("", "policy.codec"));
}

TEST(Load, SaysWhyAFileCannotBeRead) {
  v1::Config config;
  const Status missing = load_file("/nonexistent/c.yaml", Checks{}, config);
  EXPECT_EQ(missing.code(), StatusCode::kNOT_FOUND);
  EXPECT_EQ(missing.message(), "cannot read /nonexistent/c.yaml: No such file or directory");
  EXPECT_FALSE(load_file("/tmp", Checks{}, config).ok());
}

TEST(Load, ReadsAFile) {
  const std::string path = ::testing::TempDir() + "/cgx_load_test.yaml";
  std::ofstream(path) << "lane: scalar\n";
  v1::Config config;
  const Status status = load_file(path, Checks{}, config);
  std::remove(path.c_str());
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(config.lane(), "scalar");
}

TEST(Set, AssignsByPath) {
  v1::Config config;
  EXPECT_TRUE(set("policy.window=8", config).ok());
  EXPECT_TRUE(set("policy.codec=maxmin:4,bucket=512,stochastic", config).ok());
  EXPECT_TRUE(set("policy.rules=[{match: 'a.*', codec: fp16}]", config).ok());
  EXPECT_TRUE(set("transport.devices=[eth0, eth1]", config).ok());
  EXPECT_TRUE(set("transport.devices=[eth2]", config).ok());
  EXPECT_EQ(config.policy().window(), 8u);
  EXPECT_EQ(config.policy().codec(), "maxmin:4,bucket=512,stochastic");
  EXPECT_EQ(config.policy().rules(0).codec(), "fp16");
  ASSERT_EQ(config.transport().devices_size(), 1);
  EXPECT_EQ(config.transport().devices(0), "eth2");
}

TEST(Set, SaysWhatIsWrong) {
  v1::Config config;
  EXPECT_EQ(set("policy.window", config).message(), "\"policy.window\" is not key=value");
  EXPECT_EQ(set("policy.windo=1", config).message(),
            "policy.windo: no such key; did you mean window?");
  EXPECT_EQ(set("lane.x=1", config).message(), "lane.x: lane has no keys below it");
  EXPECT_EQ(set("policy.window=65", config).message(), "policy.window: 65 is not allowed: 1 to 64");
  EXPECT_EQ(set("policy.rules=[{mtch: x}]", config).message(),
            "line 1: policy.rules[0].mtch: no such key; did you mean match?");
  EXPECT_EQ(set("mesh.network=10.1.0.0/24", config).message(),
            "line 1: mesh.network: expects a list: [10.1.0.0/24]");
}

}  // namespace
}  // namespace cgx::config
