// The pilot with a job played around it.
#include "scheduler/planners/pilot.h"

#include <gtest/gtest.h>

#include "tests/scheduler/planners/played_job.h"

namespace cgx::scheduler {
namespace {

TEST(Pilot, KeepsTheFasterPlanWithinSixtySteps) {
  PlayedJob job;
  job.play(60);
  EXPECT_EQ(job.running(), kFour);
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
  ASSERT_GE(job.reported.size(), 1u);
  EXPECT_EQ(job.reported[0].verdict, "kept");
  EXPECT_NEAR(job.reported[0].measured, 0.3, 1e-9);
  EXPECT_NEAR(job.reported[0].predicted, 0.3, 1e-9);
  EXPECT_EQ(job.reported[0].step_ns, 30);
  const int proposals = job.proposals;
  job.play(1000);
  EXPECT_EQ(job.proposals, proposals) << "nothing has changed";
}

TEST(Pilot, PromisesOfTheWholeTimeBetweenSteps) {
  PlayedJob job;
  job.between_ns = 100;
  job.play(60);
  ASSERT_GE(job.reported.size(), 1u);
  EXPECT_NEAR(job.reported[0].predicted, 0.65, 1e-9) << "130 of 200";
  EXPECT_NEAR(job.reported[0].measured, 0.65, 1e-9);
}

TEST(Pilot, RemembersPlansThatLostUntilStepsTakeAnotherTime) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  double slower = 1;
  job.truth = [&](const CodecSpec& spec) { return slower * (spec == kRawSpec ? 100 : 105); };
  job.predicted = [&](const CodecSpec& spec) {
    return slower * (spec == kRawSpec || slower == 1 ? 100 : 90);
  };
  job.play(200);
  ASSERT_EQ(job.running(), kRawSpec);
  const int proposals = job.proposals;
  ASSERT_GT(proposals, 0);
  slower = 1.12;
  job.play(200);
  EXPECT_EQ(job.searches_noted(), 1) << job.verdicts();
  EXPECT_EQ(job.proposals, proposals) << job.verdicts();
  slower = 1.35;
  job.play(300);
  EXPECT_EQ(job.searches_noted(), 2) << job.verdicts();
  EXPECT_GT(job.proposals, proposals) << job.verdicts();
}

TEST(Pilot, WantsALargerDriftAfterASearchInVain) {
  PlayedJob job;
  job.take_times(100, 105);
  job.play(200);
  const auto searches_after = [&](double raw, int steps) {
    job.take_times(raw, 1.05 * raw);
    job.play(steps);
    return job.searches_noted();
  };
  EXPECT_EQ(searches_after(112, 250), 1);  // 12 % each
  EXPECT_EQ(searches_after(125, 120), 1);
  EXPECT_EQ(searches_after(140, 60), 2);
  EXPECT_EQ(searches_after(156, 250), 2) << job.verdicts();
}

// Whatever is promised of compression, nothing comes true of it.
TEST(Pilot, BelievesPromisesOfLaterSearchesAsFarAsEarlierOnesCameTrue) {
  PlayedJob job;
  double slower = 1;
  job.predicted = [&](const CodecSpec& spec) { return slower * (spec == kRawSpec ? 100 : 90); };
  job.truth = [&](const CodecSpec& spec) { return slower * (spec == kRawSpec ? 100 : 108); };
  job.play(200);
  int proposals[4] = {job.proposals};
  ASSERT_GT(proposals[0], 0);
  for (int search = 1; search < 4; ++search) {
    slower *= 1.38;  // less than what is plain
    job.play(700);
    EXPECT_EQ(job.searches_noted(), search) << job.verdicts();
    proposals[search] = job.proposals;
  }
  EXPECT_EQ(proposals[1], proposals[0]) << "the first search's second trial was a surprise";
  EXPECT_GT(proposals[2], proposals[1]) << "none is disbelieved for ever";
  EXPECT_EQ(proposals[3], proposals[2]) << job.verdicts();
}

// The first trial shows nothing, and takes all the steps that the first search has.
TEST(Pilot, TriesLaterWhatItsSearchHadNoStepsFor) {
  PlayedJob job;
  job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 80.0 : spec == kEight ? 85.0 : 100.0;
  };
  job.truth = [&job](const CodecSpec& spec) {
    const double near = 97.0 + 2.0 * static_cast<double>(job.step % 3);
    return spec == kEight ? 50.0 : spec == kFour ? near : 100.0;
  };
  job.play(60);
  ASSERT_EQ(job.running(), kRawSpec) << job.verdicts();
  ASSERT_STREQ(job.pilot.doing(), "settled");
  job.play(140);
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
  EXPECT_EQ(job.searches_noted(), 1) << job.verdicts();
}

// Whatever is left promises much, and nothing comes true of it.
TEST(Pilot, DoesNotTryForEverWhatPromisesMuch) {
  PlayedJob job;
  job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 80.0; };
  job.truth = [](const CodecSpec&) { return 100.0; };
  job.play(400);
  const int proposals = job.proposals;
  EXPECT_LE(job.searches_noted(), 1) << job.verdicts();
  job.play(4000);
  EXPECT_EQ(job.proposals, proposals) << job.verdicts();
}

// The quickest of two plans under load is kept; when all is calm, the other is looked at again.
TEST(Pilot, LooksAgainAtAPlanThatItLeftAmidUnrest) {
  PlayedJob job;
  job.play(120);
  ASSERT_EQ(job.running(), kFour);
  job.load = 2;
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kEight ? 20.0 : spec == kFour ? 30.0 : 100.0;
  };
  job.play(150);
  ASSERT_EQ(job.running(), kEight) << job.verdicts();
  job.load = 1;
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kEight ? 40.0 : spec == kFour ? 30.0 : 100.0;
  };
  job.play(400);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
}

// What arithmetic took under load says nothing of calm times, nor the other way round.
TEST(Pilot, ForgetsWhatArithmeticTookUnderOtherLoad) {
  PlayedJob job;
  job.play(120);
  ASSERT_EQ(job.running(), kFour);
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kEight ? 20.0 : spec == kFour ? 30.0 : 100.0;
  };
  for (const double load : {2.0, 1.0}) {
    job.load = load;
    const int searches = job.searches_noted();
    while (job.searches_noted() == searches && job.step < 2000) job.play_step();
    EXPECT_FALSE(job.seen.empty());
    for (const SeenPlan& seen : job.seen) EXPECT_EQ(seen.arithmetic_ns, 0) << job.verdicts();
    job.play(100);
  }
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
}

TEST(Pilot, ForgetsItsPatienceWithDriftInCalmTimes) {
  PlayedJob job;
  job.take_times(100, 105);
  job.play(200);
  job.take_times(112, 117.6);
  job.play(200);
  ASSERT_EQ(job.searches_noted(), 1) << job.verdicts();
  job.play(500);
  job.take_times(126, 132.3);
  job.play(400);
  EXPECT_EQ(job.searches_noted(), 2) << job.verdicts();
}

// What is predicted to be far slower is tried in a first search, which may be wrong, and not each
// time that steps drift.
TEST(Pilot, TriesThePlanThatLosesNothingAgainOnlyWhereItIsNear) {
  for (const double raw : {36.0, 31.0}) {
    PlayedJob job;
    double slower = 1;
    job.truth = job.predicted = [&](const CodecSpec& spec) {
      return spec == kRawSpec ? slower * raw : spec == kFour ? slower * 30 : 1000;
    };
    job.take(job.make(PlayedJob::groups_of(kFour), {}));
    job.play(200);
    const int proposals = job.proposals;
    EXPECT_GT(proposals, 0) << job.verdicts();
    slower = 1.3;
    job.play(300);
    EXPECT_EQ(job.searches_noted(), 1) << job.verdicts();
    EXPECT_EQ(job.proposals > proposals, raw < 33) << job.verdicts();
  }
}

// A few percent take many pairs to tell.
TEST(Pilot, EndsASearchWithinAHundredStepsWhereDifferencesAreSmall) {
  PlayedJob job;
  job.truth = [](const CodecSpec& spec) {
    return spec == kFour ? 95.0 : spec == kEight ? 97.0 : 100.0;
  };
  job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 94.0 : spec == kEight ? 93.0 : 100.0;
  };
  job.play(100);
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_FALSE(job.trial || job.next);
}

TEST(Pilot, TakesStepsThatPlansNoLongerDisturbForNoChange) {
  PlayedJob job;
  job.while_plans_alternate = 1.25;
  job.play(400);
  EXPECT_EQ(job.running(), kFour);
  EXPECT_EQ(job.searches, 1) << job.verdicts();
}

TEST(Pilot, GoesOnWithATrialUnderLoad) {
  PlayedJob job;
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 94.0 : spec == kEight ? 120.0 : 100.0;
  };
  while (!job.trial) job.play_step();
  job.load = 2;
  job.play(50);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_EQ(job.reported[0].verdict, "kept");
}

TEST(Pilot, StaysWhereNothingIsFaster) {
  PlayedJob job;
  job.truth = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 140.0; };
  job.play(80);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
  EXPECT_STREQ(job.pilot.doing(), "settled");
  for (const PlanNote& note : job.reported) EXPECT_EQ(note.verdict, "no faster");
}

TEST(Pilot, TriesNothingThatIsPredictedToBeFarSlower) {
  PlayedJob job;
  job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 130.0; };
  job.play(40);
  EXPECT_EQ(job.proposals, 0);
  EXPECT_STREQ(job.pilot.doing(), "settled");
}

TEST(Pilot, FindsTheBestOfWrongPredictions) {
  PlayedJob job;  // 4 bits are promised to be the fastest, and 8 bits are
  job.truth = [](const CodecSpec& spec) {
    return spec == kFour ? 120.0 : spec == kEight ? 60.0 : 100.0;
  };
  job.play(120);
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
}

// 8 bits are promised to gain most and gain nothing: what sends far fewer bytes still comes next.
TEST(Pilot, TriesWhatDiffersMostInBytesAfterAPredictionThatWasFarOff) {
  PlayedJob job;
  job.menu = {kEight, kFour, kRawSpec};
  job.predicted = [](const CodecSpec& spec) {
    return spec == kEight ? 23.0 : spec == kFour ? 108.0 : 100.0;
  };
  job.truth = [](const CodecSpec& spec) {
    return spec == kEight ? 109.0 : spec == kFour ? 25.0 : 100.0;
  };
  job.play(45);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  ASSERT_GE(job.reported.size(), 2u);
  EXPECT_EQ(job.reported[0].name + job.reported[1].name, "eightfour");
}

TEST(Pilot, EndsATrialThatShowsNothingOfWhatWasPromisedAfterOnePair) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  job.predicted = [](const CodecSpec& spec) { return spec == kFour ? 30.0 : 100.0; };
  job.truth = [](const CodecSpec& spec) { return spec == kFour ? 99.0 : 100.0; };
  while (!job.trial) job.play_step();
  job.play(9);
  ASSERT_EQ(job.reported.size(), 1u);
  EXPECT_EQ(job.reported[0].verdict, "no faster");
}

TEST(Pilot, LooksAgainSoonAfterAPlainChangeThoughItHasJustSettled) {
  PlayedJob job;
  while (std::string(job.pilot.doing()) != "settled") job.play_step();
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 300.0 : spec == kEight ? 200.0 : 100.0;
  };
  job.play(40);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
}

TEST(Pilot, GoesOnWithTheNextWhereOneIsRefused) {
  PlayedJob job;
  job.refusal = Status(StatusCode::kRESOURCE_EXHAUSTED, "machine 1 refuses");
  job.play(80);
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
  EXPECT_NE(job.reported[0].verdict.find("machine 1 refuses"), std::string::npos);
}

// The plan that runs and one on trial take all there is: the verdict waits for the trial's end.
TEST(Pilot, KeepsTheFasterPlanWhereThereIsNoRoomForAThird) {
  PlayedJob job;
  job.plans_most = 2;
  job.menu = {kFour, kRawSpec};
  job.play(100);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
  EXPECT_EQ(job.plans_held(), 1);
}

TEST(Pilot, TriesTheNextPlanWhenALostTrialHasGivenItsMemoryBack) {
  PlayedJob job;  // 4 bits are promised to be the fastest, and 8 bits are
  job.plans_most = 2;
  job.truth = [](const CodecSpec& spec) {
    return spec == kFour ? 120.0 : spec == kEight ? 60.0 : 100.0;
  };
  job.play(200);
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
}

TEST(Pilot, TriesALostPlanOnceThoughItsTrialCannotBeEnded) {
  PlayedJob job;
  job.plans_most = 2;
  job.menu = {kFour, kRawSpec};
  job.truth = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 140.0; };
  job.play(1000);
  EXPECT_EQ(job.proposals, 2) << job.verdicts();
  EXPECT_EQ(job.running(), kRawSpec);
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
}

// A few percent, which take most pairs to tell.
TEST(Pilot, GivesUpPlansThatAreRefusedEachTimeTheyAreToBeKept) {
  PlayedJob job;
  job.never_adopts = true;
  job.take_times(100, 95);
  job.play(300);
  EXPECT_STREQ(job.pilot.doing(), "settled") << job.verdicts();
  EXPECT_EQ(job.running(), kRawSpec);
  const int proposals = job.proposals;
  job.play(2000);
  EXPECT_EQ(job.proposals, proposals) << job.verdicts();
}

TEST(Pilot, AsksAgainToKeepThePlanThatWasFaster) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  while (!job.trial) job.play_step();
  job.never_adopts = true;
  job.play(20);
  ASSERT_NE(job.verdicts().find("adopting: "), std::string::npos) << job.verdicts();
  job.never_adopts = false;
  job.play(60);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_EQ(job.proposals, 3) << "a trial, and twice to keep it; " << job.verdicts();
}

TEST(Pilot, SaysWhyThereIsNoSurvey) {
  PlayedJob job;
  job.survey_status = Status(StatusCode::kNOT_FOUND, "no cost of codec efsign");
  job.play(40);
  EXPECT_EQ(job.searches, 1);
  EXPECT_NE(job.verdicts().find("no cost of codec efsign"), std::string::npos);
  EXPECT_STREQ(job.pilot.doing(), "settled");
}

TEST(Pilot, WaitsWhileOthersPropose) {
  PlayedJob job;
  job.may = false;
  job.play(50);
  EXPECT_EQ(job.searches + job.proposals, 0);
  job.may = true;
  job.play(60);
  EXPECT_EQ(job.running(), kFour);
}

TEST(Pilot, SurveysAnewWhenStepsChangeForAWhile) {
  PlayedJob job;
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  job.truth = [](const CodecSpec& spec) {  // the network is fast now, and cores are short
    return spec == kFour ? 60.0 : spec == kEight ? 50.0 : 20.0;
  };
  job.predicted = job.truth;
  job.play(50);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
  EXPECT_EQ(job.searches, 2);
}

TEST(Pilot, LooksAgainAfterFiveStepsThatArePlainlyOff) {
  PlayedJob job;
  job.play(120);
  ASSERT_EQ(job.searches, 1);
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 300.0 : spec == kEight ? 200.0 : 100.0;
  };
  int steps = 0;
  while (job.searches == 1 && steps < 50) job.play(1), ++steps;
  EXPECT_GE(steps, 5);
  EXPECT_LE(steps, 9) << "a window of eight steps may have to fill up first";
  job.play(20);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
}

TEST(Pilot, BeginsAgainWhereStepsChangeDuringATrial) {
  PlayedJob job;
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kRawSpec ? 100.0 : 97.0;  // a trial of many pairs
  };
  while (!job.trial) job.play_step();
  job.play(6);
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 200.0 : spec == kEight ? 300.0 : 900.0;
  };
  job.play(70);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
  EXPECT_NE(job.verdicts().find("void: steps changed meanwhile"), std::string::npos)
      << job.verdicts();
}

// Searches that kept nothing make it rest longer, but for a plain change.
TEST(Pilot, LooksAgainSoonAfterAPlainChangeThoughItRests) {
  PlayedJob job;
  job.truth =
      job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 105.0; };
  job.play(300);
  for (const double slower : {120.0, 144.0, 175.0}) {  // small changes, each a search in vain
    job.truth = job.predicted = [slower](const CodecSpec& spec) {
      return spec == kRawSpec ? slower : 1.05 * slower;
    };
    job.play(slower == 175.0 ? 150 : 600);
  }
  const int searches = job.searches;
  EXPECT_GE(searches, 3);
  job.truth = job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 200.0 : spec == kEight ? 300.0 : 900.0;
  };
  job.play(60);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
}

TEST(Pilot, GivesThePlanThatLosesNothingItsChanceInTheEnd) {
  PlayedJob job;
  job.play(100);
  ASSERT_EQ(job.running(), kFour);
  job.truth = [](const CodecSpec& spec) {
    return spec == kFour ? 60.0 : spec == kEight ? 90.0 : 40.0;
  };
  job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 60.0 : spec == kEight ? 50.0 : 62.0;
  };
  job.play(80);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
}

// Steps under the compressed plan take as long as before: only answers show it.
TEST(Pilot, LooksAgainWhereAnswersComePlainlyFaster) {
  PlayedJob job;
  job.answer_ns_per_byte = 16;
  job.play(120);
  ASSERT_EQ(job.running(), kFour);
  ASSERT_EQ(job.searches, 1);
  job.truth = job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 20.0 : 30.0; };
  job.answer_ns_per_byte = 5;
  job.play(18);
  EXPECT_EQ(job.searches, 2) << "two windows of six steps, and what is left of one";
  EXPECT_TRUE(job.counts_as_fast);
  job.play(32);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
  EXPECT_NE(job.verdicts().find("search: answers come faster: the link may be; "),
            std::string::npos)
      << job.verdicts();
}

TEST(Pilot, LooksOnceForALinkThatBecameFasterInVain) {
  PlayedJob job;
  job.answer_ns_per_byte = 16;
  job.play(120);
  const int proposals = job.proposals;
  job.answer_ns_per_byte = 5;
  job.play(1000);
  EXPECT_EQ(job.searches, 2);
  EXPECT_EQ(job.running(), kFour);
  EXPECT_LE(job.proposals, proposals + 3);
  job.answer_ns_per_byte = 16;  // slow again, which no step shows
  job.play(300);
  job.answer_ns_per_byte = 5;
  job.play(300);
  EXPECT_EQ(job.searches, 2) << "as fast as when the plan was looked at last";
}

TEST(Pilot, TakesAFewQuickAnswersForNoFasterLink) {
  PlayedJob job;
  job.answer_ns_per_byte = 16;
  job.play(120);
  for (int i = 0; i < 10; ++i) {
    job.answer_ns_per_byte = 5;
    job.play(1);
    job.answer_ns_per_byte = 16;
    job.play(30);
  }
  for (int i = 0; i < 20; ++i) {  // one in each window
    job.answer_ns_per_byte = 5;
    job.play(1);
    job.answer_ns_per_byte = 16;
    job.play(5);
  }
  EXPECT_EQ(job.searches, 1);
}

// Arithmetic takes twice as long with the steps: others have the cores, for a while.
TEST(Pilot, IsNotHurriedByLoad) {
  PlayedJob job;
  job.play(120);
  ASSERT_EQ(job.searches, 1);
  job.load = 2;
  job.play(30);
  EXPECT_EQ(job.searches, 1) << "a slower link would have been looked at";
  job.play(60);
  EXPECT_EQ(job.searches, 2);
  EXPECT_NE(job.verdicts().find("search: cores are shared with others"), std::string::npos)
      << job.verdicts();
}

TEST(Pilot, SwitchesUnderLoadOnlyForAPlainGain) {
  for (const double gain : {0.95, 0.7}) {
    PlayedJob job;
    job.play(120);
    job.load = 2;
    job.truth = job.predicted = [gain](const CodecSpec& spec) {
      return spec == kEight ? 30.0 * gain : spec == kFour ? 30.0 : 100.0;
    };
    job.play(150);
    EXPECT_EQ(job.running(), gain < 0.9 ? kEight : kFour) << job.verdicts();
    const bool refused = job.verdicts().find("not worth a switch") != std::string::npos;
    EXPECT_EQ(refused, gain > 0.9) << job.verdicts();
  }
}

TEST(Pilot, TakesAShortDisturbanceForNone) {
  PlayedJob job;
  job.play(100);
  const auto quiet = job.truth;
  job.truth = [](const CodecSpec&) { return 500.0; };
  job.play(4);
  job.truth = quiet;
  job.play(300);
  EXPECT_EQ(job.searches, 1);
}

TEST(Pilot, CostsLittleWhereNothingIsFaster) {
  PlayedJob job;
  job.truth = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 150.0; };
  job.play(2000);
  EXPECT_LE(job.total_ns, 2000 * 100.0 / 0.97);
}

}  // namespace
}  // namespace cgx::scheduler
