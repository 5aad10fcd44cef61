#include "scheduler/plan/decisions.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

TensorTable some_network() {
  return {{.name = "embedding.weight", .elements = 64'000, .shape = {1000, 64}},
          {.name = "layer.weight", .elements = 4096, .shape = {64, 64}},
          {.name = "layer.bias", .elements = 4096, .shape = {4096}},
          {.name = "tiny.weight", .elements = 64, .shape = {8, 8}},
          {.name = "counts", .dtype = DType::kI64, .elements = 2000, .shape = {2, 1000}}};
}

DecisionsPtr decide(const Policy& policy, const TensorTable& table = some_network()) {
  Result<DecisionsPtr> made = Decisions::create(policy, table);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *made;
}

const CodecSpec kEight{.codec = 3, .bits = 8, .bucket = 512};
const CodecSpec kTwo{.codec = 3, .bits = 2, .bucket = 512};

TEST(Decisions, CompressMatricesAndSendTheRestRaw) {
  const Policy policy;
  const DecisionsPtr made = decide(policy);
  EXPECT_EQ(made->spec_of(1, policy), policy.default_codec);
  EXPECT_EQ(made->reason(1), "default");
  for (const uint32_t raw : {2u, 3u, 4u}) {
    EXPECT_EQ(made->spec_of(raw, policy).codec, 0);
    EXPECT_FALSE(made->by_default(raw));
  }
  EXPECT_EQ(made->reason(2), "one-dimensional, fewer than 65536 elements");
  EXPECT_EQ(made->reason(3), "fewer than 1024 elements");
  EXPECT_EQ(made->reason(4), "not a small float type");
}

TEST(Decisions, AreMadeSomeNamesAtATime) {
  TensorTable table;
  for (int i = 0; i < 100; ++i) {
    table.push_back(
        {.name = std::string(500, 'a') + std::to_string(i), .elements = 4096, .shape = {64, 64}});
  }
  Policy policy;
  policy.rules = {{"7$", kEight}};
  const auto steps_of = [&] {
    Result<DecisionsMaker> maker = DecisionsMaker::begin(policy, table);
    EXPECT_TRUE(maker.ok());
    int steps = 1;
    while (!*maker->work(table)) ++steps;
    for (uint32_t t = 0; t < table.size(); ++t) {
      EXPECT_EQ(maker->made()->reason(t), decide(policy, table)->reason(t));
    }
    return steps;
  };
  EXPECT_EQ(steps_of(), 12) << "of nine names";
  policy.rules.clear();
  EXPECT_EQ(steps_of(), 1) << "nothing is matched";
}

TEST(Decisions, AreTheFirstMatchingRules) {
  Policy policy;
  policy.rules = {{"embed", kEight}, {"e", kTwo}};
  EXPECT_EQ(decide(policy)->spec_of(0, policy), kEight);
  EXPECT_EQ(decide(policy)->reason(0), "rule 1: embed");
  EXPECT_EQ(decide(policy)->spec_of(1, policy), kTwo);
  policy.rules.pop_back();
  EXPECT_TRUE(decide(policy)->by_default(1));
}

TEST(Decisions, KeepSmallTensorsFromRulesThatDoNotNameThem) {
  Policy policy;
  policy.rules = {{".*", kEight}};
  EXPECT_EQ(decide(policy)->spec_of(1, policy), kEight);
  EXPECT_EQ(decide(policy)->reason(2), "one-dimensional, fewer than 65536 elements");
  EXPECT_EQ(decide(policy)->reason(3), "fewer than 1024 elements");
  policy.rules.push_back({"bias$|tiny", kEight, /*small=*/true});
  EXPECT_EQ(decide(policy)->reason(2), "rule 2: bias$|tiny");
  EXPECT_EQ(decide(policy)->spec_of(3, policy), kEight);
}

TEST(Decisions, TakeALargeVectorForWhatItIs) {
  const auto reason = [](uint64_t elements) {
    return decide({}, {{.name = "flat", .elements = elements, .shape = {elements}}})->reason(0);
  };
  EXPECT_EQ(reason(10'000'000), "default");
  EXPECT_EQ(reason(kVectorElements), "default");
  EXPECT_NE(reason(kVectorElements - 1), "default");
}

TEST(Decisions, NameTheRuleThatIsNoRegularExpression) {
  Policy policy;
  policy.rules = {{"ok", {}}, {"broken(", {}}};
  const Status status = Decisions::create(policy, some_network()).status();
  EXPECT_NE(status.message().find("rule 2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("broken("), std::string::npos) << status.message();
}

TEST(Decisions, AreRefusedForMoreRulesThanTheTableAllows) {
  Policy policy;
  policy.rules.assign(17, {"weight", {}});
  EXPECT_TRUE(Decisions::create(policy, TensorTable(1000)).ok());
  const Status status = Decisions::create(policy, TensorTable(65'536)).status();
  EXPECT_EQ(status.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(status.message().find("17 rules for 65536 tensors"), std::string::npos);
  EXPECT_NE(status.message().find("16 rules here"), std::string::npos);
}

TEST(Decisions, HoldForAnotherPolicyOfTheSameRules) {
  Policy policy;
  policy.rules = {{"embed", kEight}, {"bias", kEight, /*small=*/true}};
  const DecisionsPtr made = decide(policy);
  Policy other = policy;
  other.default_codec = kEight;
  other.rules[0].codec = kTwo;
  other.window = 7;
  ASSERT_TRUE(made->hold_for(other));
  EXPECT_EQ(made->spec_of(0, other), kTwo);
  EXPECT_EQ(made->spec_of(1, other), kEight);
  const auto holds = [&](auto change) {
    Policy changed = policy;
    change(changed);
    return made->hold_for(changed);
  };
  EXPECT_FALSE(holds([](Policy& p) { p.rules[0].match = "embedding"; }));
  EXPECT_FALSE(holds([](Policy& p) { p.rules[1].small = false; }));
  EXPECT_FALSE(holds([](Policy& p) { p.rules.pop_back(); }));
  EXPECT_FALSE(holds([](Policy& p) { p.min_elements = 1; }));
  EXPECT_FALSE(holds([](Policy& p) { p.raw_one_dimensional = false; }));
}

TEST(Decisions, CountTheirMemory) {
  const uint64_t few = decide({}, TensorTable(1000))->bytes();
  const uint64_t many = decide({}, TensorTable(65'536))->bytes();
  EXPECT_EQ(many - few, (65'536u - 1000u) * sizeof(int32_t));
}

}  // namespace
}  // namespace cgx::scheduler
