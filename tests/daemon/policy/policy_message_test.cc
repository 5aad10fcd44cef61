#include "daemon/policy/policy_message.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "proto/messages/config.pb.h"

namespace cgx::daemon {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

TEST(PolicyMessage, HasTheSameDefaultsAsThePlainForm) {
  const Result<CheckedPolicy> checked = check_policy(v1::Policy());
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  EXPECT_TRUE(MessageDifferencer::Equals(checked->message, to_message(scheduler::Policy())))
      << config::print(to_message(scheduler::Policy()));
}

TEST(PolicyMessage, SurvivesTheWayThereAndBack) {
  v1::Policy message;
  ASSERT_TRUE(
      config::load_text("codec: maxmin:8,bucket=1024,feedback\n"
                        "rules: [{match: a, codec: fp16, small: true}, {match: b, codec: fp32}]\n"
                        "min_elements: 7\nraw_one_dimensional: false\n"
                        "group_bytes: 1 MiB\nwindow: 9\nweight: 3\n"
                        "replica_check_steps: 0\ncollective: allgather\n"
                        "feedback_decay: 0.9\nstats_steps: 7\nmode: auto\n"
                        "menu: ['fp32', 'maxmin:8,bucket=512']\n",
                        "policy", config_checks(), message)
          .ok());
  const Result<CheckedPolicy> checked = check_policy(message);
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  ASSERT_EQ(checked->plain.rules.size(), 2u);
  EXPECT_TRUE(checked->plain.rules[0].small);
  EXPECT_FALSE(checked->plain.rules[1].small);
  EXPECT_EQ(checked->plain.default_codec.bits, 8);
  EXPECT_TRUE(checked->plain.default_codec.feedback());
  EXPECT_EQ(checked->plain.collective, scheduler::CollectiveWish::kAllgather);
  EXPECT_EQ(checked->plain.feedback_decay, 0.9f);
  EXPECT_EQ(checked->plain.stats_steps, 7u);
  EXPECT_EQ(checked->plain.mode, scheduler::PlanMode::kAuto);
  ASSERT_EQ(checked->plain.menu.size(), 2u);
  EXPECT_EQ(checked->plain.menu[1].bits, 8);
  const Result<CheckedPolicy> again = check_policy(to_message(checked->plain));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(MessageDifferencer::Equals(checked->message, again->message));
}

TEST(PolicyMessage, IsFilledFromAnother) {
  v1::Policy base, wish;
  base.set_codec("fp32");
  base.set_window(7);
  base.add_rules()->set_match("a");
  EXPECT_FALSE(fill_from(base, wish, /*no_rules=*/false).ok());
  wish.set_window(8);
  const Result<v1::Policy> filled = fill_from(base, wish, /*no_rules=*/false);
  ASSERT_TRUE(filled.ok());
  EXPECT_EQ(filled->codec(), "fp32");
  EXPECT_EQ(filled->window(), 8u);
  EXPECT_EQ(filled->rules_size(), 1);
  EXPECT_EQ(fill_from(base, wish, /*no_rules=*/true)->rules_size(), 0);
  wish.add_rules()->set_match("b");
  wish.mutable_rules(0)->set_codec("fp16");
  ASSERT_EQ(fill_from(base, wish, /*no_rules=*/false)->rules_size(), 1);
  EXPECT_EQ(fill_from(base, wish, /*no_rules=*/false)->rules(0).match(), "b");
  base.add_menu("fp32");
  wish.add_menu("fp16");
  ASSERT_EQ(fill_from(base, wish, /*no_rules=*/false)->menu_size(), 1)
      << "a list takes the other's place";
  EXPECT_EQ(fill_from(base, wish, /*no_rules=*/false)->menu(0), "fp16");
}

TEST(PolicyMessage, RefusesADecayThatIsNoShareAndACollectiveNobodyHas) {
  for (const char* text : {"0", "-0.5", "1.01", "nan", "inf", "half", "0.5x"}) {
    v1::Policy message;
    message.set_feedback_decay(text);
    const std::string said = check_policy(message).status().message();
    EXPECT_THAT(said, HasSubstr("feedback_decay: "));
    EXPECT_THAT(said, HasSubstr(text));
    EXPECT_THAT(said, HasSubstr("above 0 and at most 1"));
  }
  v1::Policy message;
  message.set_collective("ring");
  EXPECT_THAT(check_policy(message).status().message(), HasSubstr("collective: "));
}

TEST(PolicyMessage, KnowsACodecOfRacksOrTheSame) {
  v1::Policy message;
  message.set_rack_codec("fp32");
  const Result<CheckedPolicy> checked = check_policy(message);
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  ASSERT_TRUE(checked->plain.rack_codec.has_value());
  EXPECT_EQ(checked->plain.rack_codec->codec, 0);
  EXPECT_EQ(to_message(checked->plain).rack_codec(), "fp32");
  message.set_rack_codec("same");
  EXPECT_FALSE(check_policy(message)->plain.rack_codec);
  message.set_rack_codec("maxmax:8");
  EXPECT_THAT(check_policy(message).status().message(), HasSubstr("rack_codec: "));
  message.set_rack_codec("fp32");
  message.set_collective("allgather");
  EXPECT_THAT(check_policy(message).status().message(), HasSubstr("collective allgather"));
}

TEST(PolicyMessage, RefusesACodecNobodyHasAndNamesTheKey) {
  v1::Policy message;
  message.set_codec("maxmax:4");
  EXPECT_THAT(check_policy(message).status().message(), HasSubstr("codec: "));
  EXPECT_THAT(check_policy(message).status().message(), HasSubstr("maxmin"));
}

TEST(PolicyMessage, RefusesWhatDivergesAndWarnsOfWhatIsDoubtful) {
  v1::Policy message;
  message.set_codec("maxmin:2,bucket=512,stochastic,feedback");
  EXPECT_FALSE(check_policy(message).ok());
  message.set_codec("maxmin:2,bucket=512,feedback");
  const Result<CheckedPolicy> checked = check_policy(message);
  ASSERT_TRUE(checked.ok()) << checked.status().to_string();
  EXPECT_EQ(checked->warnings.size(), 1u);
}

TEST(ConfigChecks, KnowTheLanes) {
  v1::Config config;
  EXPECT_TRUE(config::load_text("lane: auto", "c", config_checks(), config).ok());
  EXPECT_TRUE(config::load_text("lane: scalar", "c", config_checks(), config).ok());
  EXPECT_THAT(config::load_text("lane: abacus", "c", config_checks(), config).message(),
              HasSubstr("scalar"));
}

}  // namespace
}  // namespace cgx::daemon
