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

TEST(PatternSet, FindsTheFirstOfSeveral) {
  Result<PatternSet> patterns = PatternSet::compile({"bias$", "layer", "\\.\\d+\\."}, "rule");
  ASSERT_TRUE(patterns.ok()) << patterns.status().to_string();
  EXPECT_EQ(patterns->first_in("layer.3.bias"), 0u);
  EXPECT_EQ(patterns->first_in("layer.3.weight"), 1u);
  EXPECT_EQ(patterns->first_in("block.3.weight"), 2u);
  EXPECT_EQ(patterns->first_in("embedding"), std::nullopt);
  EXPECT_EQ(PatternSet::compile({}, "rule")->first_in("embedding"), std::nullopt);
}

TEST(PatternSet, NamesThePatternThatIsWrong) {
  const Status status = PatternSet::compile({"a", "(?!b)"}, "rule").status();
  EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(status.message().find("rule 2: match '(?!b)'"), std::string::npos) << status.message();
}

TEST(PatternSet, AnswersWhenItsSetRunsOutOfMemory) {
  // Each alone is small; what a set must remember of all of them at once grows with 2^200.
  std::vector<std::string> texts;
  for (char c = 'a'; c <= 'z'; ++c) texts.push_back(std::string(1, c) + "[a-z]{200}x");
  texts.push_back("!");
  Result<PatternSet> patterns = PatternSet::compile(texts, "rule");
  if (!patterns.ok()) {
    EXPECT_EQ(patterns.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
    return;
  }
  std::string name;
  for (int i = 0; i < 2000; ++i) name += static_cast<char>('a' + (i * i + i / 7) % 23);
  EXPECT_EQ(patterns->first_in(name + "!"), uint32_t{26});
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
