// What is said of one tensor's choice: prices as the timeline has them.
#include "scheduler/planners/explanation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/plan/way.h"
#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

struct ExplainedInSlices {
  Explanation found;
  int slices = 0;
};

ExplainedInSlices explain_in_slices(const SurveyQuestion& question, uint32_t tensor,
                                    uint64_t evaluations) {
  Result<ExplanationSearch> search = ExplanationSearch::create(question, tensor);
  EXPECT_TRUE(search.ok()) << search.status().to_string();
  int slices = 1;
  while (!search->work(evaluations)) ++slices;
  EXPECT_TRUE(search->answer().ok()) << search->answer().status().to_string();
  return {*search->answer(), slices};
}

Explanation explanation_of(const SurveyQuestion& question, uint32_t tensor) {
  return explain_in_slices(question, tensor, UINT64_MAX).found;
}

void expect_same(const PricedChoice& one, const PricedChoice& other) {
  EXPECT_EQ(one.codec, other.codec);
  EXPECT_EQ(one.collective, other.collective);
  EXPECT_EQ(one.step_ns, other.step_ns);
  EXPECT_EQ(one.daemon_ns, other.daemon_ns);
  EXPECT_EQ(one.sent_bytes, other.sent_bytes);
}

// Whoever else plans on that thread waits for one slice of it.
TEST(Explanation, IsTheSameHoweverItIsSliced) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const ExplainedInSlices whole = explain_in_slices(question, 3, UINT64_MAX);
  const ExplainedInSlices sliced = explain_in_slices(question, 3, 1);
  ASSERT_GE(whole.found.others.size(), 3u);
  EXPECT_GE(sliced.slices, 44 + 1 + static_cast<int>(whole.found.others.size()))
      << "11 crowds x 4 ways are fitted, then each choice is priced, one of them in a slice";
  expect_same(sliced.found.chosen, whole.found.chosen);
  ASSERT_EQ(sliced.found.others.size(), whole.found.others.size());
  for (size_t i = 0; i < whole.found.others.size(); ++i) {
    expect_same(sliced.found.others[i], whole.found.others[i]);
  }
  EXPECT_EQ(sliced.found.by_default, whole.found.by_default);
}

TEST(Explanation, PricesTheChoiceAsTheStepThatWasMeasured) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const Explanation found = explanation_of(question, 3);
  EXPECT_EQ(found.measured_ns, question.measured.step_ns);
  EXPECT_NEAR(found.chosen.step_ns, question.measured.step_ns, 1e-3 * question.measured.step_ns);
  EXPECT_EQ(found.chosen.codec, MeasuredJob::kRaw);
  EXPECT_GT(found.chosen.daemon_ns, 0);
  EXPECT_TRUE(found.by_default);
}

TEST(Explanation, NamesTheNextBestFirstAndWhatItWouldCost) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {80, 50'000}, 0});
  const Explanation found = explanation_of(question, 3);
  ASSERT_GE(found.others.size(), 3u) << "8 bits, 4 bits, and another way for its group";
  EXPECT_EQ(found.others[0].codec, job.policy.default_codec) << "the link is slow";
  EXPECT_LT(found.others[0].step_ns, found.chosen.step_ns);
  EXPECT_LT(found.others[0].sent_bytes, found.chosen.sent_bytes);
  EXPECT_TRUE(std::is_sorted(
      found.others.begin(), found.others.end(),
      [](const auto& one, const auto& other) { return one.step_ns < other.step_ns; }));
  // The same plan with that one tensor at 4 bits, under the same conditions.
  std::vector<Group> groups = job.running->plan.groups;
  for (Group& group : groups) {
    for (Segment& segment : group.segments) {
      if (segment.tensor == 3) segment.spec = job.policy.default_codec;
    }
  }
  const FactsPtr changed = job.facts_of(groups);
  const std::vector<double> arrivals = arrivals_of(question);
  const auto took = timeline_of(changed->plan, *job.table, arrivals, {*job.costs, {80, 50'000}, 0});
  ASSERT_TRUE(took.ok());
  EXPECT_NEAR(found.others[0].step_ns, took->step_ns(), 0.01 * took->step_ns());
}

// All pieces of the tensor change, and their groups' parts ahead with them.
TEST(Explanation, PricesTheWayThatGroupsWouldGo) {
  Policy policy = MeasuredJob::auto_policy();
  policy.group_bytes = policy.segment_bytes = 256 << 10;
  const MeasuredJob job(policy);
  const Conditions truth{*job.costs, {8, 50'000}, 0};
  const SurveyQuestion question = job.question(truth);
  const Explanation found = explanation_of(question, 3);
  const auto expect_as_changed = [&](const CodecSpec& codec, Collective collective) {
    std::vector<Group> groups = job.running->plan.groups;
    for (Group& group : groups) {
      if (group.segments[0].tensor != 3) continue;
      group.segments[0].spec = codec;
      group.way = choose_way({.wish = wish_for(collective), .machines = 2}, group, *job.table);
    }
    const auto took = timeline_of(job.facts_of(std::move(groups))->plan, *job.table,
                                  arrivals_of(question), truth);
    ASSERT_TRUE(took.ok());
    const auto priced =
        std::find_if(found.others.begin(), found.others.end(), [&](const PricedChoice& each) {
          return each.codec == codec && each.collective == collective;
        });
    ASSERT_NE(priced, found.others.end());
    EXPECT_NEAR(priced->step_ns, took->step_ns(), 1e-3 * took->step_ns());
    EXPECT_EQ(priced->sent_bytes, took->sent_bytes);
    EXPECT_NEAR(priced->daemon_ns, took->after.work_ns, 1e-6 * took->after.work_ns);
  };
  expect_as_changed(job.policy.default_codec, Collective::kScatter);
  expect_as_changed(MeasuredJob::kRaw, Collective::kAllgather);
}

TEST(Explanation, SaysThatARuleHasDecided) {
  Policy policy = MeasuredJob::auto_policy();
  policy.rules = {{"layer3", {.codec = 3, .bits = 8, .bucket = 512}}};
  const MeasuredJob job(policy);
  const Explanation found = explanation_of(job.question({*job.costs, {8, 50'000}, 0}), 3);
  EXPECT_FALSE(found.by_default);
  EXPECT_EQ(found.chosen.codec.bits, 8);
}

TEST(Explanation, KeepsToTheCollectiveThatThePolicyNames) {
  Policy policy = MeasuredJob::auto_policy();
  policy.collective = CollectiveWish::kAllgather;
  const MeasuredJob job(policy);
  const Explanation found = explanation_of(job.question({*job.costs, {8, 50'000}, 0}), 0);
  for (const PricedChoice& each : found.others) {
    EXPECT_EQ(each.collective, Collective::kAllgather);
  }
}

}  // namespace
}  // namespace cgx::scheduler
