#include "scheduler/planners/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace cgx::scheduler {
namespace {

using Verdict = TrialScore::Verdict;

constexpr Trial kTrial{.against = 1, .block = 4, .pairs = 6};
constexpr uint64_t kFirst = 100;

// Plays the steps until there is a verdict; `period` says what a step takes.
struct Played {
  Verdict verdict = Verdict::kOpen;
  uint64_t steps = 0;
  double ratio = 0;
};
Played play(const std::function<double(uint64_t step, bool tried)>& period, bool shared = false) {
  TrialScore score(kTrial, kFirst, shared);
  for (uint64_t step = kFirst; step < kFirst + kTrial.steps(); ++step) {
    score.add(step, period(step, kTrial.tries(step - kFirst)));
    if (score.verdict() != Verdict::kOpen)
      return {score.verdict(), step + 1 - kFirst, score.ratio()};
  }
  return {score.verdict(), kTrial.steps(), score.ratio()};
}

TEST(Trial, GivesBothPlansAsManyStepsAndTurnsAtComingFirst) {
  uint32_t tried = 0, came_first = 0;
  for (uint64_t step = 0; step < kTrial.steps(); ++step) {
    if (!kTrial.tries(step)) continue;
    ++tried;
    if (step % (2 * kTrial.block) == 0) ++came_first;
  }
  EXPECT_EQ(tried, kTrial.steps() / 2);
  EXPECT_EQ(came_first, kTrial.pairs / 2);
  EXPECT_FALSE(kTrial.tries(kTrial.steps())) << "then it gives way";
  EXPECT_FALSE(kTrial.tries(kTrial.steps() + 3));
}

TEST(TrialScore, SeesAPlainDifferenceAfterAPair) {
  const Played faster = play([](uint64_t, bool tried) { return tried ? 50.0 : 100.0; });
  EXPECT_EQ(faster.verdict, Verdict::kFaster);
  EXPECT_EQ(faster.steps, 8u);
  EXPECT_DOUBLE_EQ(faster.ratio, 0.5);
  const Played slower = play([](uint64_t, bool tried) { return tried ? 160.0 : 100.0; });
  EXPECT_EQ(slower.verdict, Verdict::kNotFaster);
  EXPECT_EQ(slower.steps, 8u);
}

TEST(TrialScore, WantsAllPairsToAgreeBesideOthers) {
  const Played faster = play([](uint64_t, bool tried) { return tried ? 50.0 : 100.0; }, true);
  EXPECT_EQ(faster.verdict, Verdict::kFaster);
  EXPECT_EQ(faster.steps, kTrial.steps());
  const auto disturbed_at = [](uint64_t pair) {
    return [pair](uint64_t step, bool tried) {
      return tried ? ((step - kFirst) / 8 == pair ? 120.0 : 50.0) : 100.0;
    };
  };
  const Played disturbed = play(disturbed_at(4), true);
  EXPECT_EQ(disturbed.verdict, Verdict::kNotFaster);
  EXPECT_EQ(disturbed.steps, 40u);
  EXPECT_EQ(play(disturbed_at(4)).verdict, Verdict::kFaster) << "alone, one pair is enough";
}

TEST(TrialScore, SeesAClearDifferenceAfterTwoPairs) {
  const Played faster = play([](uint64_t, bool tried) { return tried ? 80.0 : 100.0; });
  EXPECT_EQ(faster.verdict, Verdict::kFaster);
  EXPECT_EQ(faster.steps, 16u);
  const Played slower = play([](uint64_t, bool tried) { return tried ? 120.0 : 100.0; });
  EXPECT_EQ(slower.verdict, Verdict::kNotFaster);
  EXPECT_EQ(slower.steps, 16u);
}

TEST(TrialScore, WantsASecondPairWhereOneStepOfABlockDisagrees) {
  // The block's last step takes as long as the other plan's.
  const auto period = [](uint64_t step, bool tried) {
    const bool last = (step - kFirst) % kTrial.block == kTrial.block - 1;
    return tried && !last ? 50.0 : 100.0;
  };
  EXPECT_EQ(play(period).steps, 16u);
}

TEST(TrialScore, WantsASecondPairWhereFewStepsOfABlockCounted) {
  const auto period = [](uint64_t step, bool tried) {
    return (step - kFirst) % kTrial.block == 2 ? 0.0 : tried ? 50.0 : 100.0;
  };
  EXPECT_EQ(play(period).steps, 16u);
}

// The third step of each block takes as long under either plan.
TEST(TrialScore, WantsMorePairsForASmallDifference) {
  const auto takes = [](double tried_ns) {
    return [tried_ns](uint64_t step, bool tried) {
      return (step - kFirst) % kTrial.block == 2 ? 110.0 : tried ? tried_ns : 100.0;
    };
  };
  const Played faster = play(takes(95));
  EXPECT_EQ(faster.verdict, Verdict::kFaster);
  EXPECT_EQ(faster.steps, 32u);
  const Played equal = play(takes(100));
  EXPECT_EQ(equal.verdict, Verdict::kNotFaster) << "a tie keeps what runs";
  EXPECT_EQ(equal.steps, 32u);
  const Played hardly = play(takes(99));
  EXPECT_EQ(hardly.verdict, Verdict::kNotFaster) << "not worth a switch";
  EXPECT_GE(hardly.steps, 32u);
}

TEST(TrialScore, SeesASmallDifferenceAfterTwoPairsWhereItIsThatOfEveryStep) {
  const Played faster = play([](uint64_t step, bool tried) {
    return (tried ? 95.0 : 100.0) + static_cast<double>(step % 3);
  });
  EXPECT_EQ(faster.verdict, Verdict::kFaster);
  EXPECT_EQ(faster.steps, 16u);
  for (const double tried_ns : {99.0, 100.0, 104.0}) {
    const Played not_worth_it = play([tried_ns](uint64_t step, bool tried) {
      return (tried ? tried_ns : 100.0) + 0.2 * static_cast<double>(step % 3);
    });
    EXPECT_EQ(not_worth_it.verdict, Verdict::kNotFaster);
    EXPECT_EQ(not_worth_it.steps, 16u) << tried_ns;
  }
}

TEST(TrialScore, WantsAllPairsToAgreeWhereThereAreFew) {
  constexpr Trial kShort{.against = 1, .block = 4, .pairs = 3};
  for (const double last : {95.0, 105.0}) {
    TrialScore score(kShort, 0);
    for (uint64_t step = 0; step < kShort.steps(); ++step) {
      score.add(step, kShort.tries(step) ? (step / 8 == 2 ? last : 95.0) : 100.0);
    }
    EXPECT_EQ(score.verdict(), last < 100 ? Verdict::kFaster : Verdict::kNotFaster);
  }
}

// How often a plan is kept whose steps take so many times as long, if each step takes what it likes
// around that: the logarithm is spread by `noise`.
double share_kept(double times, double noise, uint32_t pairs, bool shared = false) {
  constexpr uint32_t kSeeds = 4'000;
  const Trial trial{.against = 1, .block = 4, .pairs = pairs};
  uint32_t kept = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937 random(seed);
    std::lognormal_distribution<double> spread(0, noise);
    TrialScore score(trial, 0, shared);
    for (uint64_t step = 0; step < trial.steps(); ++step) {
      score.add(step, spread(random) * (trial.tries(step) ? times : 1));
      if (score.verdict() != Verdict::kOpen) break;
    }
    kept += score.verdict() == Verdict::kFaster;
  }
  return kept / double{kSeeds};
}

TEST(TrialScore, KeepsHardlyAnEqualPlanByChance) {
  for (const double noise : {0.02, 0.05, 0.3}) {
    const double by_chance_most = noise > 0.1 ? 0.09 : 0.055;  // amid plain noise a bit more
    for (uint32_t pairs = 2; pairs <= kTrial.pairs; ++pairs) {
      for (const bool shared : {false, true}) {
        EXPECT_LE(share_kept(1, noise, pairs, shared), by_chance_most)
            << pairs << " pairs, noise " << noise << (shared ? ", beside others" : "");
      }
    }
  }
}

TEST(TrialScore, SeesThroughNoiseWhatIsPlainlyFaster) {
  for (uint32_t pairs = 2; pairs <= kTrial.pairs; ++pairs) {
    EXPECT_GE(share_kept(0.9, 0.05, pairs), 0.9) << pairs << " pairs";
    EXPECT_GE(share_kept(0.95, 0.05, pairs), pairs < 5 ? 0.4 : 0.7) << pairs << " pairs";
  }
}

TEST(TrialScore, TakesNoDriftForADifference) {
  // Every step takes 2 % longer than the one before.
  const Played drift = play([](uint64_t step, bool) { return 100 + 2.0 * double(step - kFirst); });
  EXPECT_EQ(drift.verdict, Verdict::kNotFaster);
}

TEST(TrialScore, IgnoresPausesAndTheFirstStepOfABlock) {
  const auto period = [](uint64_t step, bool tried) {
    const uint64_t in_block = (step - kFirst) % kTrial.block;
    if (in_block == 0) return 10'000.0;              // a switch
    if (in_block == 2 && step % 3 == 0) return 0.0;  // does not count
    return tried ? 80.0 : 100.0;
  };
  const Played played = play(period);
  EXPECT_EQ(played.verdict, Verdict::kFaster);
  EXPECT_DOUBLE_EQ(played.ratio, 0.8);
}

TEST(TrialScore, KeepsNoEqualPlanForPausesBesideIt) {
  constexpr Trial kShortBlocks{.against = 1, .block = 3, .pairs = 4};  // two steps of each count
  TrialScore score(kShortBlocks, 0);
  for (uint64_t step = 0; step < kShortBlocks.steps(); ++step) {
    const bool pause = !kShortBlocks.tries(step) && step % kShortBlocks.block == 1;
    score.add(step, pause ? 5'000 : 100);
  }
  EXPECT_EQ(score.verdict(), Verdict::kNotFaster);
  EXPECT_DOUBLE_EQ(score.ratio(), 1);
}

TEST(TrialScore, TakesNoSlowPlanForPauses) {
  const Played slower = play([](uint64_t, bool tried) { return tried ? 400.0 : 100.0; });
  EXPECT_EQ(slower.verdict, Verdict::kNotFaster);
  EXPECT_DOUBLE_EQ(slower.ratio, 4);
  // Nor where one step in three of it is as fast as the other's.
  const Played uneven = play([](uint64_t step, bool tried) {
    return tried && (step - kFirst) % kTrial.block != 1 ? 400.0 : 100.0;
  });
  EXPECT_EQ(uneven.verdict, Verdict::kNotFaster);
  EXPECT_DOUBLE_EQ(uneven.ratio, 4);
}

TEST(TrialScore, SaysNothingOfStepsThatNeverCounted) {
  TrialScore score(kTrial, kFirst);
  for (uint64_t step = kFirst; step < kFirst + kTrial.steps(); ++step) score.add(step, 0);
  EXPECT_EQ(score.pairs(), 0u);
  EXPECT_EQ(score.verdict(), Verdict::kOpen);
  EXPECT_TRUE(score.over(kFirst + kTrial.steps() - 1));
  EXPECT_FALSE(score.over(kFirst + kTrial.steps() - 2));
}

TEST(Median, IsTheMiddleOne) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
}

}  // namespace
}  // namespace cgx::scheduler
