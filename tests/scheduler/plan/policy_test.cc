#include <gtest/gtest.h>

#include "scheduler/communicator/kept_by_name.h"
#include "scheduler/planners/policy_effect.h"

namespace cgx::scheduler {
namespace {

const CodecSpec kFour{.codec = 3, .bits = 4, .bucket = 512};
const CodecSpec kRaw{.codec = 0, .bucket = 512};

TensorTable network() {
  return {{.name = "a.weight", .elements = 4096, .shape = {64, 64}},
          {.name = "b.weight", .elements = 8192, .shape = {128, 64}},
          {.name = "b.bias", .elements = 128, .shape = {128}}};
}

PolicyEffect effect(const Policy& policy) {
  Result<PolicyEffect> effect = effect_of(network(), policy);
  EXPECT_TRUE(effect.ok()) << effect.status().to_string();
  return *std::move(effect);
}

TEST(PolicyEffect, CountsTensorsAndBytesByCodec) {
  const std::vector<CodecTotal> totals = totals_of(network(), effect({}).specs);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].tensors, 2u);
  EXPECT_EQ(totals[0].bytes, 12288u / 2 + 24 * 8);  // half a byte a value, 8 bytes a bucket
  EXPECT_EQ(totals[1].tensors, 1u);
  EXPECT_EQ(totals[1].bytes, 512u);
}

TEST(PolicyEffect, NamesTheTensorsThatWereExact) {
  const std::vector<CodecSpec> exact(3, kRaw);
  EXPECT_EQ(made_lossy(exact, effect({}).specs), (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(made_lossy(effect({}).specs, exact).empty());
  EXPECT_TRUE(made_lossy(effect({}).specs, effect({}).specs).empty());
}

TEST(PolicyEffect, NamesRulesThatDoNothing) {
  Policy policy;
  policy.rules = {{"weight", kFour}, {"b[.]weight", kRaw},  {"nowhere", kRaw},
                  {"bias", kFour},   {"bias", kFour, true}, {"b", kRaw}};
  const std::vector<std::string> texts = idle_rules(policy, effect(policy).rules);
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_EQ(texts[0],
            "rule 2 (b[.]weight) decides nothing: rules before it match the same tensors");
  EXPECT_EQ(texts[1], "rule 3 (nowhere) matches no tensor");
  EXPECT_EQ(texts[2].find("rule 4 (bias) matches small tensors only"), 0u);
  EXPECT_EQ(texts[3].find("rule 6 (b) decides nothing"), 0u);
}

TEST(PolicyEffect, EndsWhenNobodyWaitsForItAnyMore) {
  Policy policy;
  policy.rules = {{"x", kFour}};
  const TensorTable table(100, {.name = std::string(500, 'a'), .elements = 4096, .shape = {4096}});
  int asked = 0;
  const auto waits = [&](int times) { return [&asked, times] { return ++asked < times; }; };
  EXPECT_EQ(effect_of(table, policy, waits(3)).status().code(), StatusCode::kTIMED_OUT);
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(effect_of(table, policy, waits(100)).ok());
}

TEST(PolicyEffect, NamesRulesForTypesThatNoCodecTakes) {
  Policy policy;
  policy.rules = {{"steps", kFour}, {"s", kFour, true}};
  const TensorTable table{{.name = "steps", .dtype = DType::kI64, .elements = 1 << 20},
                          {.name = "scale", .elements = 16, .shape = {16}}};
  const Result<PolicyEffect> found = effect_of(table, policy);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  const std::vector<std::string> texts = idle_rules(policy, found->rules);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0],
            "rule 1 (steps) matches tensors only whose type no codec takes: they travel as they "
            "are");
  EXPECT_EQ(found->specs[0].codec, 0);
  EXPECT_EQ(found->specs[1], kFour);
}

TEST(KeptPolicies, RememberTheLastOfEachName) {
  KeptPolicies kept;
  const KeptFor mine{1, "job", "grads"}, others{2, "job", "grads"};
  EXPECT_FALSE(kept.find(mine).has_value());
  kept.keep(mine, {.window = 7});
  kept.keep(mine, {.window = 8});
  kept.keep(others, {.window = 9});
  EXPECT_EQ(kept.find(mine)->window, 8u);
  EXPECT_EQ(kept.find(others)->window, 9u);
  kept.forget(mine);
  EXPECT_FALSE(kept.find(mine).has_value());
}

TEST(KeptPolicies, ForgetTheOldestWhenThereAreTooMany) {
  KeptPolicies kept;
  for (uint32_t uid = 0; uid <= KeptPolicies::kMax; ++uid) kept.keep({uid, "job", "grads"}, {});
  EXPECT_FALSE(kept.find({0, "job", "grads"}).has_value());
  EXPECT_TRUE(kept.find({1, "job", "grads"}).has_value());
  EXPECT_TRUE(kept.find({KeptPolicies::kMax, "job", "grads"}).has_value());
}

TEST(KeptPolicies, AreLostOfTheUserWhoHasMostOfThem) {
  KeptPolicies kept;
  EXPECT_FALSE(kept.keep({1, "train", "grads"}, {}).has_value());
  EXPECT_FALSE(kept.keep({2, "job0", "grads"}, {}).has_value());
  for (int i = 1; i < 100; ++i) {
    const auto lost = kept.keep({2, "job" + std::to_string(i), "grads"}, {});
    EXPECT_EQ(lost ? lost->uid : 2u, 2u);
    EXPECT_EQ(lost.has_value(), i + 2 > static_cast<int>(KeptPolicies::kMax));
  }
  EXPECT_TRUE(kept.find({1, "train", "grads"}).has_value());
  EXPECT_FALSE(kept.find({2, "job0", "grads"}).has_value());
  EXPECT_TRUE(kept.find({2, "job99", "grads"}).has_value());
}

TEST(Policy, IsTheSameWishWhoeverHasIt) {
  Policy one, other;
  other.note.by = "uid 7";
  EXPECT_TRUE(same_wish(one, other));
  other.rules = {{"a", kRaw}};
  EXPECT_FALSE(same_wish(one, other));
}

TEST(Policy, SearchesForTheSameWhateverItsWeight) {
  Policy one, other;
  one.weight = 2;
  one.stats_steps = 7;
  EXPECT_TRUE(same_search(one, other));
  other.default_codec.bits = 2;
  EXPECT_FALSE(same_search(one, other));
}

}  // namespace
}  // namespace cgx::scheduler
