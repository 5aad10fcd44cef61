#include "scheduler/plan/plan_origin.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

const CodecSpec kExact{.codec = 0, .bucket = 512};
const PolicyRule kPinned{"^layer\\.0\\.weight$", kExact, /*small=*/true};

Policy with_rules(std::vector<PolicyRule> rules) {
  Policy policy;
  policy.rules = std::move(rules);
  policy.note = {.by = "alice", .reason = "pin layer.0.weight to fp32"};
  return policy;
}

TEST(PlanOrigin, NamesTheOperatorAndTheReason) {
  Policy wider;
  wider.window = 9;
  EXPECT_EQ(origin_of(wider, {}), (PlanOrigin{kByPolicy, "an operator"}));
  wider.note = {.by = "bob", .reason = "more in flight"};
  EXPECT_EQ(origin_of(wider, {}), (PlanOrigin{kByPolicy, "bob: more in flight"}));
}

TEST(PlanOrigin, TellsAPinFromOtherChanges) {
  const PolicyRule rule{"weight$", kExact};
  const Policy before = with_rules({rule}), pinned = with_rules({kPinned, rule});
  EXPECT_EQ(origin_of(pinned, before), (PlanOrigin{kByPin, "alice: pin layer.0.weight to fp32"}));
  EXPECT_EQ(origin_of(before, pinned).who, kByPin) << "unpinned";
  EXPECT_EQ(origin_of(before, before).who, kByPolicy);
  for (const char* const match : {"weight$", "^layer.*$", "^a\\", "^(a|b)$", "^"}) {
    const Policy other = with_rules({{match, kExact, /*small=*/true}, rule});
    EXPECT_EQ(origin_of(other, before).who, kByPolicy) << match;
  }
  Policy both = pinned;
  both.window = 9;
  EXPECT_EQ(origin_of(both, before).who, kByPolicy);
}

TEST(PlanOrigin, OfARepeatedPlanTellsWhatWasRecorded) {
  const PlanOrigin again = repeated({kByReorder, "another order"});
  EXPECT_EQ(again,
            (PlanOrigin{kByHistory, "repeats a plan history, by reorder then: another order"}));
  EXPECT_EQ(repeated(again), again);
  EXPECT_EQ(repeated({}).why, "repeats a plan history");
}

}  // namespace
}  // namespace cgx::scheduler
