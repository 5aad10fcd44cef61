#include "scheduler/planners/job_profile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

struct ProfiledInSlices {
  Result<JobProfile> found;
  int slices = 0;
};

ProfiledInSlices profile_in_slices(const SurveyQuestion& question, uint64_t evaluations) {
  Result<ProfileSearch> search = ProfileSearch::create(question);
  if (!search.ok()) return {search.status()};
  int slices = 1;
  while (!search->work(evaluations)) ++slices;
  return {search->answer(), slices};
}

TEST(JobProfile, IsTheSameHoweverItIsSliced) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  const auto [whole, once] = profile_in_slices(question, UINT64_MAX);
  const auto [sliced, slices] = profile_in_slices(question, 1);
  ASSERT_TRUE(whole.ok() && sliced.ok());
  EXPECT_EQ(once, 1);
  EXPECT_GE(slices, 44) << "11 crowds x 4 ways, one of them in a slice";
  const Conditions &one = whole->fit.conditions, &other = sliced->fit.conditions;
  EXPECT_EQ(other.link.ns_per_byte, one.link.ns_per_byte);
  EXPECT_EQ(other.link.trip_ns, one.link.trip_ns);
  EXPECT_EQ(other.costs.operation_ns, one.costs.operation_ns);
  EXPECT_EQ(other.costs.wire_ns_per_byte, one.costs.wire_ns_per_byte);
  EXPECT_EQ(sliced->fit.running_ns, whole->fit.running_ns);
  EXPECT_EQ(sliced->menu, whole->menu);
  EXPECT_EQ(sliced->tensors, whole->tensors);
}

TEST(JobProfile, SaysWhatASearchGoesBy) {
  Policy policy = MeasuredJob::auto_policy();
  const CodecSpec eight{.codec = 3, .bits = 8, .bucket = 512};
  policy.rules = {{"layer3", eight}};
  const MeasuredJob job(policy);
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  question.seen = {{job.running, 1e6, question.measured.step_ns}, {job.running, 1e6, 0}};
  const Result<JobProfile> profile = profile_in_slices(question, UINT64_MAX).found;
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  EXPECT_NEAR(profile->fit.conditions.link.ns_per_byte, 8, 0.1);
  EXPECT_EQ(profile->step.step_ns, question.measured.step_ns);
  EXPECT_EQ(profile->others_seen, 1u) << "the other is of other times";
  EXPECT_EQ(profile->tensors, job.table);
  EXPECT_EQ(std::count(profile->menu.begin(), profile->menu.end(), eight), 1);
  EXPECT_EQ(std::count(profile->menu.begin(), profile->menu.end(), policy.default_codec), 1);
}

TEST(JobProfile, SaysWhichCodecHasNoCost) {
  MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  MachineCosts poor = *job.costs;
  poor.codecs.clear();
  question.costs = std::make_shared<const MachineCosts>(poor);
  EXPECT_EQ(profile_in_slices(question, UINT64_MAX).found.status().code(), StatusCode::kNOT_FOUND);
}

}  // namespace
}  // namespace cgx::scheduler
