#include "scheduler/pattern.h"

#include <gtest/gtest.h>

#include "scheduler/job_weight.h"

namespace cgx::scheduler {
namespace {

TEST(Pattern, IsSearchedAnywhereInTheName) {
  const Result<Pattern> pattern = Pattern::compile("\\.(bias|norm)$");
  ASSERT_TRUE(pattern.ok());
  EXPECT_TRUE(pattern->found_in("layer.3.bias"));
  EXPECT_FALSE(pattern->found_in("layer.3.bias.x"));
}

TEST(Pattern, SaysWhatIsWrong) {
  EXPECT_EQ(Pattern::compile("(").status().code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_FALSE(Pattern::compile("(a)\\1").ok());
}

TEST(Pattern, CannotStallItsReader) {
  // Backtracking takes 2^500 steps here; the test's own time-out would end it.
  EXPECT_FALSE(Pattern::compile("(a+)+$")->found_in(std::string(500, 'a') + "!"));
}

TEST(JobWeights, FollowTheFirstMatch) {
  const Result<JobWeights> weights = JobWeights::create({{"^nightly-", 3}, {"night", 7}});
  ASSERT_TRUE(weights.ok());
  const Policy base{.weight = 2};
  EXPECT_EQ(weights->starting_policy(base, "nightly-1").weight, 3u);
  EXPECT_EQ(weights->starting_policy(base, "tonight").weight, 7u);
  EXPECT_EQ(weights->starting_policy(base, "day").weight, 2u);
  EXPECT_EQ(JobWeights().starting_policy(base, "night").weight, 2u);
}

TEST(JobWeights, RefuseABadPattern) {
  EXPECT_FALSE(JobWeights::create({{"[", 1}}).ok());
}

}  // namespace
}  // namespace cgx::scheduler
