#include "scheduler/planners/job_profile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

TEST(JobProfile, SaysWhatASearchGoesBy) {
  Policy policy = MeasuredJob::auto_policy();
  const CodecSpec eight{.codec = 3, .bits = 8, .bucket = 512};
  policy.rules = {{"layer3", eight}};
  const MeasuredJob job(policy);
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  question.seen = {{job.running, 1e6, question.measured.step_ns}, {job.running, 1e6, 0}};
  const Result<JobProfile> profile = profile_of(question);
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  EXPECT_NEAR(profile->fit.conditions.link.ns_per_byte, 8, 0.1);
  EXPECT_EQ(profile->step.step_ns, question.measured.step_ns);
  EXPECT_EQ(profile->others_seen, 1u) << "the other is of other times";
  ASSERT_EQ(profile->tensors.size(), job.table->size());
  EXPECT_EQ(profile->tensors[3], "layer3");
  EXPECT_EQ(std::count(profile->menu.begin(), profile->menu.end(), eight), 1);
  EXPECT_EQ(std::count(profile->menu.begin(), profile->menu.end(), policy.default_codec), 1);
}

TEST(JobProfile, SaysWhichCodecHasNoCost) {
  MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  MachineCosts poor = *job.costs;
  poor.codecs.clear();
  question.costs = std::make_shared<const MachineCosts>(poor);
  EXPECT_EQ(profile_of(question).status().code(), StatusCode::kNOT_FOUND);
}

}  // namespace
}  // namespace cgx::scheduler
