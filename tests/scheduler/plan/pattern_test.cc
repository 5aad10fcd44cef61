#include "scheduler/plan/pattern.h"

#include <gtest/gtest.h>

#include "scheduler/plan/job_weight.h"

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
  const auto first = [&](const char* name) -> std::optional<uint32_t> {
    const std::span<const int> found = *patterns->found_in(name);
    if (found.empty()) return std::nullopt;
    return static_cast<uint32_t>(found.front());
  };
  EXPECT_EQ(first("layer.3.bias"), 0u);
  EXPECT_EQ(first("layer.3.weight"), 1u);
  EXPECT_EQ(first("block.3.weight"), 2u);
  EXPECT_EQ(first("embedding"), std::nullopt);
  EXPECT_TRUE(PatternSet::compile({}, "rule")->found_in("embedding")->empty());
}

TEST(PatternSet, NamesThePatternThatIsWrong) {
  const Status status = PatternSet::compile({"a", "(?!b)"}, "rule").status();
  EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(status.message().find("rule 2: match '(?!b)'"), std::string::npos) << status.message();
}

// Names and patterns of somebody who wants to keep the daemon busy.
TEST(PatternSet, IsDoneWithHostilePatternsSoonOrRefusesThem) {
  const std::string name(496, 'a');
  Result<PatternSet> slow =
      PatternSet::compile({"(a?a?a?a?){60}b", "(a+)+$", "(.*a){20}b"}, "rule");
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(slow->found_in(name + "!")->empty());

  std::vector<std::string> texts;
  for (char c = 'a'; c <= 'z'; ++c) texts.push_back(std::string(1, c) + "\\pL{250}x");
  const Status large = PatternSet::compile(texts, "rule").status();
  EXPECT_EQ(large.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(large.message().find("the rules' patterns take more than 16 MiB together"),
            std::string::npos)
      << large.message();
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
