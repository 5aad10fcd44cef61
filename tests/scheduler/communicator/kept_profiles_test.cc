#include "scheduler/communicator/kept_profiles.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

constexpr CodecSpec kFour{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

TensorTable some_table() {
  return {{.name = "a", .elements = 5000, .shape = {50, 100}}, {.name = "b", .elements = 3}};
}

Policy some_policy() {
  Policy policy;
  policy.mode = PlanMode::kAuto;
  policy.window = 7;
  return policy;
}

Profile some_profile(uint32_t machines = 2) {
  return {.table_hash = table_hash(some_table()),
          .machines = machines,
          .policy = some_policy(),
          .groups = {Group{.segments = {{1, {.codec = 0, .bucket = 512}}, {0, kFour}}, .way = {}}}};
}

const KeptFor kWhose{.uid = 1000, .job = "tab\tand\npercent%", .communicator = "\xff dp"};

std::string error_of(const std::string& text) {
  const Result<KeptProfiles> read = KeptProfiles::parse(text);
  return read.ok() ? "" : read.status().message();
}

TEST(KeptProfiles, ReadsWhatItWrites) {
  KeptProfiles kept;
  kept.keep({0, "other", "dp"}, some_profile(4));
  kept.keep(kWhose, some_profile());
  const Result<KeptProfiles> read = KeptProfiles::parse(kept.to_text());
  ASSERT_TRUE(read.ok()) << read.status().message();
  const auto found = read->find(kWhose, some_table(), 2, some_policy());
  ASSERT_TRUE(found.ok() && *found != nullptr);
  EXPECT_EQ((*found)->groups, some_profile().groups);
  EXPECT_TRUE(read->find({0, "other", "dp"}, some_table(), 4, some_policy()).ok());
  KeptFor other_user = kWhose;
  other_user.uid = 0;
  EXPECT_EQ(*read->find(other_user, some_table(), 2, some_policy()), nullptr);
  EXPECT_EQ(read->to_text(), kept.to_text());
}

TEST(KeptProfiles, SaysOfWhatAPlanIsThatDoesNotFit) {
  KeptProfiles kept;
  kept.keep(kWhose, some_profile());
  const auto why = [&](const TensorTable& table, uint32_t machines, const Policy& policy) {
    return kept.find(kWhose, table, machines, policy).status().message();
  };
  TensorTable more = some_table();
  more.push_back({.name = "c", .elements = 9});
  Policy wider = some_policy();
  wider.window = 8;
  EXPECT_EQ(why(more, 2, some_policy()), "is of another table");
  EXPECT_EQ(why(some_table(), 3, some_policy()), "is of another number of machines, 2");
  EXPECT_EQ(why(some_table(), 2, wider), "is of another policy");
}

TEST(KeptProfiles, TakesNothingOfATextThatIsDamaged) {
  KeptProfiles kept;
  EXPECT_EQ(error_of(kept.to_text()), "") << "nothing is kept";
  kept.keep(kWhose, some_profile());
  const std::string good = kept.to_text();
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(error_of(changed), "") << "changed at " << at;
    EXPECT_NE(error_of(good.substr(0, at)), "") << "cut at " << at;
  }
  EXPECT_NE(error_of(good + "\n"), "");
  EXPECT_EQ(error_of("cgx-kept-plans 2\n"), "it does not begin with the line 'cgx-kept-plans 1'");
}

TEST(KeptProfiles, KeepsTheNewestThatFitAText) {
  Profile large = some_profile();
  large.groups[0].segments.resize(200'000, {0, kFour});  // some 10 MB as a text
  KeptProfiles kept;
  for (const char* job : {"first", "second"}) kept.keep({0, job, "dp"}, large);
  kept.keep({0, "third", "dp"}, some_profile());
  const std::string text = kept.to_text();
  EXPECT_LE(text.size(), KeptProfiles::kTextMax);
  const Result<KeptProfiles> read = KeptProfiles::parse(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const auto has = [&](const char* job) {
    const auto found = read->find({0, job, "dp"}, some_table(), 2, some_policy());
    return found.ok() && *found != nullptr;
  };
  EXPECT_FALSE(has("first"));
  EXPECT_TRUE(has("second"));
  EXPECT_TRUE(has("third"));
}

TEST(KeptProfiles, LeaveOutOfATextThoseOfTheUserWithMost) {
  Profile large = some_profile();
  large.groups[0].segments.resize(200'000, {0, kFour});  // some 10 MB as a text
  KeptProfiles kept;
  kept.keep({1, "first", "dp"}, some_profile());
  for (const char* job : {"second", "third"}) kept.keep({2, job, "dp"}, large);
  const Result<KeptProfiles> read = KeptProfiles::parse(kept.to_text());
  ASSERT_TRUE(read.ok()) << read.status().message();
  const auto has = [&](const KeptFor& whose) {
    const auto found = read->find(whose, some_table(), 2, some_policy());
    return found.ok() && *found != nullptr;
  };
  EXPECT_TRUE(has({1, "first", "dp"}));
  EXPECT_FALSE(has({2, "second", "dp"}));
  EXPECT_TRUE(has({2, "third", "dp"}));
}

}  // namespace
}  // namespace cgx::scheduler
