// Plans that others bring: operators, commits, ceilings.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "tests/scheduler/planners/played_job.h"

namespace cgx::scheduler {
namespace {

TEST(Pilot, BeginsAgainUnderAnOperatorsPlan) {
  PlayedJob job;
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  job.take(job.make({}, {}));  // a policy of mode auto begins uncompressed
  job.play(60);
  EXPECT_EQ(job.searches, 2);
  EXPECT_EQ(job.running(), kFour);
  job.policy.mode = PlanMode::kFixed;
  job.take(job.make(PlayedJob::groups_of(kEight), {}));
  job.play(100);
  EXPECT_EQ(job.searches, 2);
  EXPECT_EQ(job.running(), kEight);
  EXPECT_STREQ(job.pilot.doing(), "");
}

// A guard, say, weakens the codec.
TEST(Pilot, TriesWhatLostNotAgainUnderNewCeilings) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  job.truth = job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 32.0 : 30.0; };
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  const int proposals = job.proposals;
  job.menu = {kEight, kRawSpec};
  job.take(job.make(PlayedJob::groups_of(kEight), {}));
  job.play(100);
  EXPECT_EQ(job.searches_noted(), 1) << job.verdicts();
  EXPECT_EQ(job.proposals, proposals) << "fp32 has lost to plans as fast as this one";
  EXPECT_STREQ(job.pilot.doing(), "settled");
  job.menu = {kFour, kEight, kRawSpec};
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 25.0 : spec == kEight ? 30.0 : 32.0;
  };
  job.take(job.make(PlayedJob::groups_of(kEight), {}));  // ceilings that let more through
  job.play(100);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
}

TEST(Pilot, TriesWhatLostAgainBesideASlowerPlan) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 90.0 : spec == kEight ? 102.0 : 95.0;
  };
  job.play(150);
  ASSERT_EQ(job.running(), kFour);
  job.menu = {kEight, kRawSpec};
  job.take(job.make(PlayedJob::groups_of(kEight), {}));
  job.play(150);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
}

// What it knew of the link's speed was of the time before.
TEST(Pilot, BeginsASearchForAFasterLinkAgainWhereAnotherPlanComes) {
  PlayedJob job;
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  job.pilot.hear_of_faster_link();
  job.take(job.make(PlayedJob::groups_of(kEight), {}));
  job.play(20);
  EXPECT_TRUE(job.counts_as_fast) << job.verdicts();
}

TEST(Pilot, SearchesNothingAnewUnderKeysThatSearchesDoNotDependOn) {
  PlayedJob job;
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  const int searches = job.searches, proposals = job.proposals;
  job.policy.weight = 4;
  job.take(job.make(PlayedJob::groups_of(kFour), {}));
  job.play(200);
  EXPECT_EQ(job.searches, searches) << job.verdicts();
  EXPECT_EQ(job.proposals, proposals) << job.verdicts();
}

// A first search tries plans that promise nothing, and the one that loses nothing; but none twice.
TEST(Pilot, BeginsTheFirstSearchAgainWhereCeilingsComeBeforeItsEnd) {
  PlayedJob job;
  job.predicted = [](const CodecSpec&) { return 30.0; };
  while (job.running() != kFour && job.step < 200) {
    if (job.next && !job.next->plan->plan.trial.on()) job.may = false;  // it goes on later
    job.play_step();
  }
  EXPECT_STREQ(job.pilot.doing(), "surveying");
  job.may = true;
  const auto tried = [&] {
    return std::count_if(job.reported.begin(), job.reported.end(),
                         [](const PlanNote& note) { return note.name == "raw"; });
  };
  const auto before = tried();
  job.take(job.make(PlayedJob::groups_of(kFour), {}));
  job.play(120);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_EQ(job.searches_noted(), 0) << job.verdicts();
  EXPECT_EQ(tried(), before) << job.verdicts();
}

// Its tensors are the same, but a trainer may have changed what it does with them.
TEST(Pilot, BeginsAnewAfterACommitOfTheSameTensors) {
  PlayedJob job;
  job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 101.0; };
  job.play(120);
  ASSERT_EQ(job.running(), kFour);
  job.table = std::make_shared<TensorTable>(*job.table);
  job.take(job.make({}, {}));
  job.play(120);
  EXPECT_EQ(job.running(), kFour) << "only a first search tries what promises nothing";
}

TEST(Pilot, LetsGoOfItsPlansWhereItStops) {
  PlayedJob job;
  while (!job.trial) job.play_step();
  job.trial.reset();
  job.take(job.make({}, {}));
  ASSERT_EQ(job.plans_held(), 3);
  job.pilot.stop();
  EXPECT_EQ(job.plans_held(), 1) << "the one that runs";
  EXPECT_TRUE(job.pilot.seen().empty());
  EXPECT_STREQ(job.pilot.doing(), "");
  job.play(60);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
}

TEST(Pilot, WantsASurveyOnlyUntilAnotherPlanComes) {
  std::optional<PlayedJob> job(std::in_place);
  job->surveys_take_long = true;
  const auto play_until_asked = [&] {
    while (job->wanted.expired() && job->step < 100) job->play_step();
    EXPECT_FALSE(job->wanted.expired()) << job->step;
  };
  play_until_asked();
  job->take(job->make(PlayedJob::groups_of(kEight), {}));
  job->play_step();
  EXPECT_TRUE(job->wanted.expired()) << "another plan came";
  play_until_asked();
  job->pilot.stop();
  EXPECT_TRUE(job->wanted.expired());
  play_until_asked();
  const Wanted wanted = job->wanted;
  job.reset();
  EXPECT_TRUE(wanted.expired());
}

// It takes force between two steps: none has completed under it yet.
TEST(Pilot, AsksForNothingBetweenAnotherPlanAndItsFirstStep) {
  PlayedJob job;
  job.may = false;
  job.play(30);  // a survey is due
  job.may = true;
  job.pilot.work(job.make({}, {}));
  EXPECT_EQ(job.searches, 0) << "of a plan that has gone";
  job.pilot.work(job.base);
  EXPECT_EQ(job.searches, 1);
}

}  // namespace
}  // namespace cgx::scheduler
