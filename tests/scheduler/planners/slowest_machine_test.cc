// Machines that differ: a search goes by what the slowest takes.
#include "scheduler/planners/slowest_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/planners/survey.h"
#include "tests/scheduler/planners/measured_job.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kEpoch = 7;  // of the plan that was measured, on trial before it was adopted

StepSample sample_under(uint64_t epoch, double step_ns, double period_ns) {
  StepSample sample;
  sample.epoch = epoch;
  sample.step_ns = step_ns;
  sample.period_ns = period_ns;
  sample.arithmetic_ns = step_ns / 10;
  sample.busy_ns = step_ns / 5;
  sample.arrival_ns = {0, static_cast<float>(step_ns / 2)};
  return sample;
}

wire::MachineProfile profile_of(const MachineCosts& costs) {
  return profile_of_machine(costs, 0, 0, {});
}

MachineCosts with_slow_codecs(const MeasuredJob& job, double times) {
  MachineCosts costs = *job.costs;
  for (CodecCurves& row : costs.codecs) {
    if (row.spec.codec != 0) row.encode.ns_per_byte *= times;
  }
  return costs;
}

TEST(SlowestMachine, TakesTheSlowestOfEachCost) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  MachineCosts slow_codecs = with_slow_codecs(job, 10), slow_frames = *job.costs;
  slow_frames.frame_ns *= 4;
  question.others = {profile_of_machine(slow_codecs, 70'000, 0.5, {}), profile_of(slow_frames)};
  const SurveyQuestion slowest = by_the_slowest(question);
  const MachineCosts &costs = *slowest.costs, &here = *job.costs;
  EXPECT_NEAR(costs.frame_ns, 4 * here.frame_ns, 1);
  EXPECT_NEAR(costs.operation_ns, here.operation_ns, 1);
  EXPECT_NEAR(slowest.trip_ns, 70'000, 1);
  EXPECT_EQ(slowest.share, 0.5);
  ASSERT_EQ(costs.codecs.size(), here.codecs.size());
  for (size_t i = 0; i < costs.codecs.size(); ++i) {
    const double times = costs.codecs[i].spec.codec == 0 ? 1 : 10;
    EXPECT_NEAR(costs.codecs[i].encode.ns_per_byte, times * here.codecs[i].encode.ns_per_byte,
                1e-6);
    EXPECT_NEAR(costs.codecs[i].decode.ns_per_byte, here.codecs[i].decode.ns_per_byte, 1e-6);
  }
}

TEST(SlowestMachine, IsThisOneWhereNobodyElseIsHeard) {
  const MeasuredJob job;
  const SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  EXPECT_EQ(by_the_slowest(question).costs, question.costs);
}

// A codec that is missing elsewhere is not free there.
TEST(SlowestMachine, KeepsWhatOthersDoNotKnow) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  question.others = {wire::MachineProfile{}};
  const SurveyQuestion slowest = by_the_slowest(question);
  for (size_t i = 0; i < job.costs->codecs.size(); ++i) {
    EXPECT_EQ(slowest.costs->codecs[i].encode.ns_per_byte, job.costs->codecs[i].encode.ns_per_byte);
  }
}

TEST(SlowestMachine, CountsTimedWorkOnlyWhereAllHaveTimedIt) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  question.measured.epoch = kEpoch;
  question.measured.arithmetic_ns = 4e6;
  question.measured.busy_ns = 5e6;
  wire::MachineProfile slow = profile_of(*job.costs), quick = slow;
  slow.plans = {{.epoch = kEpoch, .arithmetic_ns = 9e6f, .busy_ns = 12e6f}};
  quick.plans = {{.epoch = kEpoch, .arithmetic_ns = 1e6f, .busy_ns = 1.5e6f}};
  question.others = {slow, quick};
  EXPECT_EQ(by_the_slowest(question).measured.arithmetic_ns, 9e6);
  EXPECT_EQ(by_the_slowest(question).measured.busy_ns, 12e6);
  question.others[1].plans[0].busy_ns = 0;
  EXPECT_EQ(by_the_slowest(question).measured.arithmetic_ns, 9e6);
  EXPECT_EQ(by_the_slowest(question).measured.busy_ns, 0) << "one does not know";
  question.others[1].plans[0].epoch = kEpoch + 1;
  EXPECT_EQ(by_the_slowest(question).measured.arithmetic_ns, 0);
  EXPECT_EQ(by_the_slowest(question).measured.busy_ns, 0);
}

TEST(SlowestMachine, DelaysGradientsToWhereTheyComeLast) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {8, 50'000}, 0});
  question.between_ns = 2e6;
  question.measured.epoch = kEpoch;
  const std::vector<double> here = arrivals_of(question);
  const double last = *std::max_element(here.begin(), here.end());
  wire::MachineProfile later = profile_of(*job.costs);
  later.plans = {{.epoch = kEpoch, .last_ns = static_cast<float>(2 * last), .between_ns = 3e6f}};
  question.others = {later};
  const std::vector<double> latest = arrivals_of(question);
  for (size_t t = 0; t < here.size(); ++t) EXPECT_NEAR(latest[t], 1e6 + 2 * here[t], 10) << t;
  question.others[0].plans[0].last_ns = 3e12f;
  const std::vector<double> never = arrivals_of(question);
  EXPECT_LE(*std::max_element(never.begin(), never.end()), question.measured.step_ns)
      << "none came after the step was complete";
}

const Candidate* lossy_candidate(const Survey& survey) {
  for (const Candidate& each : survey.candidates) {
    if (!each.bypass) return &each;
  }
  return nullptr;
}

TEST(SlowestMachine, NeedNotCompressWhatItCannotInTime) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {4, 50'000}, 0});
  const Result<SurveyPtr> alone = make_survey(question);
  ASSERT_TRUE(alone.ok());
  const Candidate* const promised = lossy_candidate(**alone);
  ASSERT_NE(promised, nullptr);
  EXPECT_LT(promised->step_ns, 0.7 * (*alone)->running_ns);
  question.others = {profile_of(with_slow_codecs(job, 2'000))};
  question.left_out = "machine 2";
  const Result<SurveyPtr> all = make_survey(question);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)->left_out, "machine 2");
  const Candidate* const found = lossy_candidate(**all);
  EXPECT_TRUE(found == nullptr || found->step_ns > 0.95 * (*all)->running_ns) << found->name;
}

// What is slow elsewhere must not be taken for a slow link.
TEST(SlowestMachine, ExplainsASlowStepByItsGradients) {
  const MeasuredJob job;
  SurveyQuestion question = job.question({*job.costs, {0.1, 20'000}, 0});
  const double late_ns = 20e6;
  question.measured.epoch = kEpoch;
  question.measured.step_ns += late_ns;
  const auto link_of = [](const SurveyQuestion& asked) {
    const Result<SurveyPtr> survey = make_survey(asked);
    return survey.ok() ? (*survey)->conditions.link.ns_per_byte : -1;
  };
  EXPECT_GT(link_of(question), 1);
  const std::vector<double> here = arrivals_of(question);
  wire::MachineProfile slow = profile_of(*job.costs);
  slow.plans = {
      {.epoch = kEpoch, .last_ns = static_cast<float>(here.front() + late_ns), .between_ns = 0}};
  question.others = {slow};
  EXPECT_LT(link_of(question), 0.5);
}

TEST(PlanTimes, TellAUsualStepOfEachPlan) {
  PlanTimes times;
  times.take(sample_under(1, 100, 1'000), true);  // the first
  for (const double step_ns : {400, 200, 300}) times.take(sample_under(1, step_ns, 1'000), true);
  times.take(sample_under(1, 5, 9), false);
  times.take(sample_under(1, 5, 0), true);
  const auto told = times.plans();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].epoch, 1u);
  EXPECT_EQ(told[0].step_ns, 300);
  EXPECT_EQ(told[0].last_ns, 150);
  EXPECT_EQ(told[0].between_ns, 700);
  EXPECT_EQ(told[0].arithmetic_ns, 30);
  EXPECT_EQ(told[0].busy_ns, 60);
}

TEST(PlanTimes, KeepTheLastPlans) {
  constexpr size_t kMost = wire::MachineProfile::kPlansMax;
  PlanTimes times;
  for (uint64_t epoch = 1; epoch <= 3 * kMost; ++epoch) {
    for (int step = 0; step < 30; ++step) times.take(sample_under(epoch, 100, 1'000), true);
    times.take(sample_under(1, 100, 1'000), true);  // one that comes back all the time
    times.take(sample_under(1, 100, 1'000), true);
  }
  const auto told = times.plans();
  ASSERT_EQ(told.size(), kMost);
  EXPECT_EQ(told.back().epoch, 1u);
  EXPECT_EQ(told[kMost - 2].epoch, 3 * kMost);
  EXPECT_EQ(told.front().epoch, 2 * kMost + 2);
}

}  // namespace
}  // namespace cgx::scheduler
