// What trials cost, and what they may: the account alone, and a pilot that keeps to it.
#include "scheduler/planners/trial_account.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/scheduler/planners/played_job.h"

namespace cgx::scheduler {
namespace {

constexpr double kStepNs = 100;

// Blocks of four steps, one under each plan.
void play_pair(TrialAccount& account, double tried_ns, double beside_ns) {
  for (int i = 0; i < 8; ++i) account.add(i < 4, i < 4 ? tried_ns : beside_ns);
}

TrialAccount account_of_a_trial() {
  TrialAccount account;
  account.begin_search(kStepNs);
  account.try_plan(2, kStepNs);
  return account;
}

TEST(TrialAccount, AddsUpWhatLosersTookBeyondThePlanBesideThem) {
  TrialAccount account = account_of_a_trial();
  play_pair(account, 300, 100);
  EXPECT_DOUBLE_EQ(account.spent_ns(), 800);
  account.try_plan(3, kStepNs);
  play_pair(account, 150, 100);
  EXPECT_DOUBLE_EQ(account.spent_ns(), 1000);
  EXPECT_TRUE(account.covers());
  account.try_plan(4, kStepNs);
  play_pair(account, 400, 100);
  EXPECT_FALSE(account.covers()) << "2,200 of 2,000";
  account.passed(19'000);
  EXPECT_FALSE(account.covers());
  account.passed(1'000);
  EXPECT_TRUE(account.covers()) << "a hundredth of the time that passed";
}

TEST(TrialAccount, ChargesSwitchesAndNoPlanThatWasFaster) {
  TrialAccount account = account_of_a_trial();
  for (const double period_ns : {100.0, 100.0, 100.0, 100.0}) account.add(true, period_ns);
  for (const double period_ns : {160.0, 100.0, 100.0, 100.0}) account.add(false, period_ns);
  EXPECT_DOUBLE_EQ(account.spent_ns(), 60);
  account.try_plan(3, kStepNs);
  play_pair(account, 50, 100);
  EXPECT_DOUBLE_EQ(account.spent_ns(), 60);
}

TEST(TrialAccount, TakesATrainersPauseForNoCost) {
  TrialAccount account = account_of_a_trial();
  account.add(true, 1e9);
  account.add(true, 110);
  EXPECT_DOUBLE_EQ(account.spent_ns(), 0) << "nobody knows yet";
  account.add(true, 110);
  account.add(true, 110);
  EXPECT_NEAR(account.spent_ns(), 120 + 3 * 10, 1e-9) << "as if it were a step of twice the time";
}

// 24 steps' worth were spent.
TEST(TrialAccount, GrantsTheWholeCreditWhereEverythingBeginsAnew) {
  TrialAccount account = account_of_a_trial();
  play_pair(account, 700, 100);
  account.begin_search(kStepNs);
  EXPECT_FALSE(account.covers());
  EXPECT_FALSE(account.far_overdrawn());
  account.begin();
  account.begin_search(kStepNs);
  EXPECT_DOUBLE_EQ(account.allowed_ns() - account.spent_ns(), 20 * kStepNs);
  account.begin_search(kStepNs);
  EXPECT_DOUBLE_EQ(account.allowed_ns() - account.spent_ns(), 20 * kStepNs);
}

// Steps took ten times as long when the credit was given.
TEST(TrialAccount, IsFarOverdrawnByWhatStepsTakeNow) {
  TrialAccount account;
  account.begin_search(10 * kStepNs);
  account.begin_search(kStepNs);
  account.try_plan(2, kStepNs);
  for (int i = 0; i < 2; ++i) play_pair(account, 2'700, 100);
  EXPECT_FALSE(account.covers());
  EXPECT_FALSE(account.far_overdrawn());
  for (int i = 0; i < 4; ++i) account.add(true, 2'700);
  EXPECT_TRUE(account.far_overdrawn());
}

// Conditions change again and again, and whatever is predicted to be faster takes three times as
// long.
struct JobOfBadPredictions : PlayedJob {
  static constexpr int kStepsBetweenChanges = 150;
  static constexpr double kLongest = 160;

  JobOfBadPredictions() {
    truth = [this](const CodecSpec& spec) { return spec == kRawSpec ? raw_ns : 3 * raw_ns; };
    predicted = [this](const CodecSpec& spec) {
      return spec == kRawSpec ? raw_ns : spec == kFour ? 0.5 * raw_ns : 0.6 * raw_ns;
    };
  }
  void play_changing(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (i % kStepsBetweenChanges == 0) raw_ns = raw_ns == 100 ? kLongest : 100;
      play_step();
    }
  }
  double raw_ns = kLongest;
};

TEST(TrialAccount, HoldsAJobOfManyBadPlansToItsAllowance) {
  JobOfBadPredictions job;
  job.play_changing(2'000);
  EXPECT_EQ(job.running(), kRawSpec) << job.verdicts();
  const double allowed_ns =
      TrialAccount::kShare * job.total_ns + TrialAccount::kCreditSteps * job.kLongest;
  EXPECT_LE(job.extra_ns, allowed_ns + TrialAccount::kFarSteps * job.kLongest) << job.verdicts();
  EXPECT_GE(job.extra_ns, 0.5 * allowed_ns) << "it goes on trying\n" << job.verdicts();
  const TrialTime shown = job.pilot.trial_time();
  EXPECT_NEAR(static_cast<double>(shown.spent_ns), job.extra_ns, 0.1 * job.extra_ns);
  EXPECT_NEAR(static_cast<double>(shown.allowed_ns), allowed_ns, 0.02 * allowed_ns);

  job.truth = [&job](const CodecSpec& spec) {
    return spec == kRawSpec ? job.raw_ns : spec == kFour ? 0.5 * job.raw_ns : 3 * job.raw_ns;
  };
  job.play_changing(2'000);
  EXPECT_EQ(job.running(), kFour) << job.verdicts();
}

// Nothing changes, but the first search has cost too much for its last candidate.
TEST(TrialAccount, TriesWhatHadToWaitWhenTimeHasPaidForIt) {
  PlayedJob job;
  job.truth = [](const CodecSpec& spec) {
    return spec == kRawSpec ? 100.0 : spec == kEight ? 60.0 : 700.0;
  };
  job.predicted = [](const CodecSpec& spec) {
    return spec == kRawSpec ? 100.0 : spec == kEight ? 70.0 : 50.0;
  };
  job.play(60);
  EXPECT_STREQ(job.pilot.doing(), "settled");
  ASSERT_EQ(job.running(), kRawSpec) << job.verdicts();
  EXPECT_TRUE(job.pilot.trial_time().waits);
  EXPECT_FALSE(job.trial || job.next) << "no plan alternates in vain";
  const double paid_at_ns =
      (job.extra_ns - 100 * TrialAccount::kCreditSteps) / TrialAccount::kShare;
  while (job.total_ns < paid_at_ns - 500) job.play_step();
  EXPECT_EQ(job.searches_noted(), 0) << job.verdicts();
  job.play(60);
  EXPECT_EQ(job.searches_noted(), 1) << job.verdicts();
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
  EXPECT_FALSE(job.pilot.trial_time().waits);
}

// Others came for the cores; the search that began then could not pay for its last candidate. When
// it goes on they are still there.
TEST(TrialAccount, PaysForASearchAmidLoadThatGoesOnAmidLoad) {
  PlayedJob job;
  job.play(120);
  ASSERT_EQ(job.running(), kFour);
  job.load = 2;
  job.truth = [](const CodecSpec& spec) {
    return spec == kFour ? 30.0 : spec == kEight ? 400.0 : 0.94 * 30;
  };
  job.predicted = [](const CodecSpec& spec) {
    return spec == kFour ? 30.0 : spec == kEight ? 15.0 : 20.0;
  };
  job.never_adopts = true;  // no plan ends the lost trial before its time
  while (!job.pilot.trial_time().waits && job.step < 400) job.play_step();
  ASSERT_TRUE(job.pilot.trial_time().waits) << job.verdicts();
  job.never_adopts = false;
  const int searches = job.searches_noted();
  while (job.searches_noted() == searches && job.step < 50'000) job.play_step();
  job.play(100);
  EXPECT_NE(job.verdicts().find("search: time has paid for the trials that had to wait; "
                                "raw: not worth a switch under others' load; "),
            std::string::npos)
      << job.verdicts();
  EXPECT_EQ(job.running(), kFour);
}

// Its first block was a lucky one: a verdict would take four pairs.
TEST(TrialAccount, StopsATrialThatCostsTooMuchBeforeItsVerdict) {
  PlayedJob job;
  job.menu = {kFour, kRawSpec};
  job.truth = [&job](const CodecSpec& spec) {
    const bool lucky = job.trial && job.step < job.trial->first_step + 4;
    return spec == kRawSpec ? 100.0 : lucky ? 95.0 : 600.0;
  };
  job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 80.0; };
  job.play(200);
  EXPECT_NE(job.verdicts().find("four: stopped: it took too much time"), std::string::npos)
      << job.verdicts();
  EXPECT_EQ(job.running(), kRawSpec);
  EXPECT_LE(job.extra_ns, 100 * 45) << "a verdict took 60 steps' worth";
}

// The next survey takes long, and the plan that lost alternates all the while.
TEST(TrialAccount, EndsALostTrialWhileTheNextSurveyTakesLong) {
  PlayedJob job;
  job.truth = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 400.0; };
  job.predicted = [](const CodecSpec& spec) { return spec == kRawSpec ? 100.0 : 80.0; };
  while (!job.trial) job.play_step();
  job.surveys_take_long = true;
  job.play(60);
  EXPECT_LE(job.extra_ns, 100 * 33) << job.verdicts();
  EXPECT_FALSE(job.trial || job.next);
  EXPECT_STREQ(job.pilot.doing(), "settled");
}

// The first search may try one plan only, which loses and costs too much: the other one waits.
TEST(TrialAccount, RemembersWhatASearchHadNoTrialsLeftFor) {
  PlayedJob job;
  job.trials_max = 1;
  job.truth = [](const CodecSpec& spec) {
    return spec == kRawSpec ? 100.0 : spec == kEight ? 60.0 : 400.0;
  };
  job.predicted = [](const CodecSpec& spec) {
    return spec == kRawSpec ? 100.0 : spec == kEight ? 70.0 : 50.0;
  };
  while (!job.trial) job.play_step();
  job.surveys_take_long = true;
  job.play(60);
  EXPECT_STREQ(job.pilot.doing(), "settled");
  EXPECT_TRUE(job.pilot.trial_time().waits) << job.verdicts();
  job.surveys_take_long = false;
  job.play(2'500);
  EXPECT_EQ(job.running(), kEight) << job.verdicts();
}

// Steps change again and again while nothing can be tried.
TEST(TrialAccount, LooksLessAndLessOftenForWhatCannotBeTried) {
  PlayedJob job;
  double raw_ns = 100;
  job.truth = [&](const CodecSpec& spec) { return spec == kRawSpec ? raw_ns : 10 * raw_ns; };
  job.predicted = [&](const CodecSpec& spec) { return spec == kRawSpec ? raw_ns : 0.5 * raw_ns; };
  for (int i = 0; i < 1'200; ++i) {
    if (i % 75 == 74) raw_ns = raw_ns == 100 ? 125 : 100;
    job.play_step();
  }
  EXPECT_LE(job.searches_noted(), 6) << job.verdicts();
}

}  // namespace
}  // namespace cgx::scheduler
