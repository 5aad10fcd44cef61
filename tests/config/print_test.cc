#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "config/config.h"
#include "config/schema.h"
#include "proto/messages/config.pb.h"
#include "proto/messages/control.pb.h"

namespace cgx::config {
namespace {

using google::protobuf::util::MessageDifferencer;

void expect_round_trip(const v1::Config& config) {
  const std::string text = print(config, Secrets::kShow);
  v1::Config again;
  const Status status = load_text(text, "printed", Checks{}, again);
  ASSERT_TRUE(status.ok()) << status.to_string() << "\n" << text;
  EXPECT_TRUE(MessageDifferencer::Equals(config, again)) << text;
}

TEST(Print, LoadsAgainAsItWas) {
  v1::Config config;
  fill_defaults(config);
  expect_round_trip(config);
}

TEST(Print, KeepsTextsThatYamlWouldMistake) {
  for (const char* text :
       {"a: b", "# c",      "- d", "'",        "\"",   "null", "~", "true", "[x]", "{", "&a",
        "*a",   " padded ", "\\n", "\xc3\xa4", "a #b", "!",    "%", "@",    "`",   "|"}) {
    v1::Config config;
    config.add_jobs()->set_match("x");
    config.mutable_jobs(0)->set_weight(2);
    config.mutable_control()->add_operators(text);
    expect_round_trip(config);
  }
}

TEST(Print, RoundTripsRandomNumbers) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 200; ++i) {
    v1::Config config;
    config.mutable_policy()->set_group_bytes(4096 + random() % 1'000'000'000);
    config.mutable_waiting()->set_spin_us(random() % 1'000);
    config.mutable_timeouts()->set_drain_ms(random() % 3'600'000);
    config.mutable_limits()->set_plan_bytes((1 << 20) + random() % (1ull << 40));
    expect_round_trip(config);
  }
}

TEST(Print, HidesSecretsAndDoesNotLoadThemHidden) {
  v1::Config config;
  config.mutable_mesh()->set_cluster_key("0123456789abcdef");
  const std::string text = print(config);
  EXPECT_EQ(
      text,
      "mesh:\n  advertise: []\n  cluster_key: \"<hidden>\"\n  trusted_networks: []\n  network: []\n"
      "jobs:\n  []\n");
  v1::Config again;
  EXPECT_FALSE(load_text(text, "printed", Checks{}, again).ok());
}

TEST(Json, IsWhatOtherParsersRead) {
  v1::JobList list;
  auto* communicator = list.add_communicators();
  communicator->set_job("quote \" slash \\ tab \t");
  communicator->set_step(12'345'678'901);
  communicator->add_groups()->set_index(3);
  list.add_sessions()->set_pid(-1);
  const std::string text = to_json(list);
  EXPECT_NE(text.find("\"step\": 12345678901,"), std::string::npos);
  v1::JobList again;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &again).ok()) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(list, again));
}

TEST(Json, TellsWhatIsNotThereFromWhatIsZero) {
  v1::JobList list;
  list.add_communicators();
  list.add_communicators()->mutable_trial_time();
  const std::string text = to_json(list);
  EXPECT_NE(text.find("\"trial_time\": null"), std::string::npos) << text;
  EXPECT_NE(text.find("\"spent_ns\": 0"), std::string::npos) << text;
}

TEST(Json, ShowsSharesAndThatNoneWasMeasured) {
  v1::TensorList list;
  list.add_tensors()->set_sent_share(0.75);
  list.add_tensors()->set_sent_share(std::numeric_limits<double>::quiet_NaN());
  list.add_tensors();
  const std::string text = to_json(list);
  EXPECT_NE(text.find("\"sent_share\": 0.75"), std::string::npos) << text;
  v1::TensorList again;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &again).ok()) << text;
  EXPECT_EQ(again.tensors(0).sent_share(), 0.75);
  EXPECT_FALSE(again.tensors(1).has_sent_share() || again.tensors(2).has_sent_share());
}

}  // namespace
}  // namespace cgx::config
