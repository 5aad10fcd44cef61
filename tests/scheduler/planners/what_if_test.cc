// What steps of a running job would take: the same timeline, other policies, other numbers of
// machines.
#include "scheduler/planners/what_if.h"

#include <gtest/gtest.h>

#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

struct FoundInSlices {
  WhatIf found;
  int slices = 0;
};

FoundInSlices find_in_slices(WhatIfQuestion question, uint64_t evaluations) {
  Result<WhatIfSearch> search = WhatIfSearch::create(std::move(question));
  EXPECT_TRUE(search.ok()) << search.status().to_string();
  int slices = 1;
  while (!search->work(evaluations)) ++slices;
  EXPECT_TRUE(search->answer().ok()) << search->answer().status().to_string();
  return {*search->answer(), slices};
}

WhatIf found_of(WhatIfQuestion question) {
  return find_in_slices(std::move(question), 64).found;
}

Policy fixed(const CodecSpec& codec) {
  Policy policy = MeasuredJob::auto_policy();
  policy.mode = PlanMode::kFixed;
  policy.default_codec = codec;
  return policy;
}

TEST(WhatIf, IsTheSameHoweverItIsSliced) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  for (const Policy& policy : {fixed(job.policy.default_codec), MeasuredJob::auto_policy()}) {
    const auto [whole, few] = find_in_slices({question, policy, 4}, UINT64_MAX);
    const auto [sliced, slices] = find_in_slices({question, policy, 4}, 1);
    EXPECT_LE(few, 4);
    EXPECT_GE(slices, 44) << "11 crowds x 4 ways are fitted, one of them in a slice";
    EXPECT_EQ(sliced.now_ns, whole.now_ns);
    EXPECT_EQ(sliced.step_ns, whole.step_ns);
    EXPECT_EQ(sliced.backward_ns, whole.backward_ns);
    EXPECT_EQ(sliced.sent_bytes, whole.sent_bytes);
    EXPECT_EQ(sliced.plan, whole.plan);
  }
}

TEST(WhatIf, IsTheTimelineOfThePlanThatThePolicyMakes) {
  const MeasuredJob job;
  const Conditions truth{*job.costs, {8, 50'000}, 0};
  const SurveyQuestion question = job.question(truth);
  const Policy four = fixed(job.policy.default_codec);
  const WhatIf found = found_of({question, four, 2});
  EXPECT_EQ(found.measured_ns, question.measured.step_ns);
  EXPECT_NEAR(found.now_ns, found.measured_ns, 1e-3 * found.measured_ns);
  const auto plan =
      make_plan({.table = *job.table, .policy = four, .order = job.order, .machines = 2});
  ASSERT_TRUE(plan.ok());
  const auto step = timeline_of(*plan, *job.table, arrivals_of(question), truth);
  ASSERT_TRUE(step.ok());
  EXPECT_NEAR(found.step_ns, step->step_ns(), 0.01 * step->step_ns());
  EXPECT_EQ(found.sent_bytes, step->sent_bytes);
  EXPECT_NE(found.plan.find("8 maxmin:4"), std::string::npos) << found.plan;
}

TEST(WhatIf, OfModeAutoIsNoLongerThanOfEachCodec) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const double best = found_of({question, MeasuredJob::auto_policy(), 2}).step_ns;
  for (const CodecSpec& codec : {MeasuredJob::kRaw, job.policy.default_codec}) {
    EXPECT_LE(best, found_of({question, fixed(codec), 2}).step_ns * 1.0001);
  }
}

TEST(WhatIf, GrowsWithTheNumberOfMachines) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const Policy raw = fixed(MeasuredJob::kRaw);
  double before = 0;
  for (const uint32_t machines : {2u, 8u, 64u, 1024u}) {
    const WhatIf found = found_of({question, raw, machines});
    EXPECT_GT(found.step_ns, before) << machines;
    before = found.step_ns;
  }
}

TEST(WhatIf, SaysWhyNoPlanFollows) {
  const MeasuredJob job;
  Policy wrong = fixed({.codec = 3, .bits = 4, .bucket = 512});
  wrong.rules = {{"(", MeasuredJob::kRaw}};
  Result<WhatIfSearch> search =
      WhatIfSearch::create({job.question({*job.costs, {8, 50'000}, 0}), wrong, 2});
  ASSERT_TRUE(search.ok());
  while (!search->work(64)) {
  }
  EXPECT_FALSE(search->answer().ok());
  EXPECT_NE(search->answer().status().message().find("rule 1"), std::string::npos)
      << search->answer().status().message();
}

}  // namespace
}  // namespace cgx::scheduler
