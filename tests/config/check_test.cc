#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <functional>

#include "config/config.h"
#include "config/schema.h"
#include "proto/messages/config.pb.h"
#include "proto/messages/control.pb.h"

namespace cgx::config {
namespace {

using ::testing::HasSubstr;

void for_each_key(const Descriptor& type,
                  const std::function<void(const FieldDescriptor&)>& visit) {
  for (const FieldDescriptor* field : fields(type)) {
    visit(*field);
    if (is_section(*field)) for_each_key(*field->message_type(), visit);
  }
}

TEST(Schema, ExplainsEveryKey) {
  for_each_key(*v1::Config::descriptor(), [](const FieldDescriptor& field) {
    EXPECT_FALSE(rule(field).help().empty()) << field.full_name();
    EXPECT_NE(rule(field).help().back(), '.') << field.full_name();
  });
}

TEST(Schema, GivesEveryKeyPresence) {
  for_each_key(*v1::Config::descriptor(), [](const FieldDescriptor& field) {
    EXPECT_TRUE(field.is_repeated() || field.has_presence()) << field.full_name();
  });
}

TEST(Schema, HasTheUnitAtTheEndOfTheName) {
  for_each_key(*v1::Config::descriptor(), [](const FieldDescriptor& field) {
    const std::string& name = field.name();
    const std::string ending = name.substr(name.find_last_of('_') + 1);
    EXPECT_EQ(ending == "bytes", quantity(field) == Quantity::kBytes) << field.full_name();
    EXPECT_EQ(ending == "us", quantity(field) == Quantity::kMicroseconds) << field.full_name();
    EXPECT_EQ(ending == "ms", quantity(field) == Quantity::kMilliseconds) << field.full_name();
  });
}

TEST(Schema, WritesDefaultsAsTheyPrint) {
  v1::Config config;
  fill_defaults(config);
  std::function<void(const Message&)> visit = [&](const Message& message) {
    for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
      if (field->is_repeated()) continue;
      if (is_section(*field)) {
        visit(message.GetReflection()->GetMessage(message, field));
      } else {
        EXPECT_EQ(value_text(message, *field, 0), rule(*field).default_text())
            << field->full_name();
      }
    }
  };
  visit(config);
}

TEST(Check, AcceptsTheDefaults) {
  v1::Config config;
  EXPECT_TRUE(check(config, Checks{}).ok());
  fill_defaults(config);
  EXPECT_TRUE(check(config, Checks{}).ok()) << check(config, Checks{}).to_string();
}

TEST(Check, FindsWhatDidNotComeThroughYaml) {
  v1::Policy policy;
  policy.set_window(0);
  policy.add_rules()->set_match("x");
  EXPECT_EQ(
      check(policy, Checks{}).message(),
      "rules[0].codec: is missing: a codec; see cgxctl codecs\nwindow: 0 is not allowed: 1 to 64");
}

TEST(Check, RefusesTextThatIsNotUtf8) {
  v1::Policy policy;
  for (const char* text : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    policy.set_codec(text);
    EXPECT_THAT(check(policy, Checks{}).message(), HasSubstr("UTF-8"));
  }
  policy.set_codec("\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa4");
  EXPECT_TRUE(check(policy, Checks{}).ok());
}

TEST(Check, BoundsTheNumberOfProblems) {
  v1::Policy policy;
  for (int i = 0; i < 1'000; ++i) policy.add_rules();
  const std::string text = check(policy, Checks{}).message();
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST(Defaults, FillElementsOfLists) {
  v1::Config config;
  config.add_jobs()->set_match("x");
  fill_defaults(config);
  EXPECT_EQ(config.jobs(0).weight(), 1u);
}

TEST(Diff, NamesTheKeysThatDiffer) {
  v1::Policy from, to;
  from.add_rules()->set_match("a");
  from.mutable_rules(0)->set_codec("raw");
  to.set_window(8);
  to.set_group_bytes(1 << 20);
  to.add_rules()->set_match("b");
  to.mutable_rules(0)->set_codec("raw");
  to.add_rules();
  fill_defaults(from);
  fill_defaults(to);
  const auto differences = diff(from, to);
  ASSERT_EQ(differences.size(), 4u);
  EXPECT_EQ(differences[0].key, "rules[0]");
  EXPECT_EQ(differences[0].from, "{match: a, codec: raw, small: false}");
  EXPECT_EQ(differences[0].to, "{match: b, codec: raw, small: false}");
  EXPECT_EQ(differences[1].from, "(none)");
  EXPECT_EQ(differences[2].key, "group_bytes");
  EXPECT_EQ(differences[2].from, "4 MiB");
  EXPECT_EQ(differences[2].to, "1 MiB");
  EXPECT_EQ(differences[3].key, "window");
  EXPECT_TRUE(diff(to, to).empty());
}

}  // namespace
}  // namespace cgx::config
