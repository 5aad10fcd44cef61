// Mode auto beside a trainer that pauses now and then: for a checkpoint, an evaluation, a batch.
#include "tests/scheduler/planners/played_job.h"

namespace cgx::scheduler {
namespace {

TEST(PilotPauses, TakesAPauseOfTheTrainerForNoChange) {
  for (uint64_t at = 0; at < 6; ++at) {
    PlayedJob job;
    job.pauses_at = at;
    job.pause_ns = 200;
    job.play(400);
    EXPECT_EQ(job.searches, 1) << "before step " << at << " of six; " << job.verdicts();
  }
}

TEST(PilotPauses, IsNotMadeRestlessByPauses) {
  PlayedJob job;
  job.pauses_every = 90;
  job.pause_ns = 300;
  job.take_times(100, 120);
  job.play(500);
  job.take_times(200, 100);
  job.play(500);
  ASSERT_EQ(job.running(), kFour) << job.verdicts();
  job.take_times(40, 80);
  job.play(500);
  ASSERT_EQ(job.running(), kRawSpec) << job.verdicts();
  job.take_times(60, 0.92 * 60);
  job.play(500);
  EXPECT_EQ(job.running(), kFour) << "a small gain, in calm times; " << job.verdicts();
}

// What comes every few steps is no pause.
TEST(PilotPauses, TakesNoCalmFromStepsBetweenOnesThatAreOff) {
  for (const uint64_t every : {3, 8}) {
    PlayedJob job;
    job.take_times(100, 120);
    job.play(300);
    job.pauses_every = every;
    job.pause_ns = 300;
    job.take_times(200, 100);
    job.play(500);
    job.take_times(40, 80);
    job.play(500);
    job.take_times(60, 0.92 * 60);
    job.play(500);
    EXPECT_NE(job.running(), kFour) << "of " << every << "; " << job.verdicts();
  }
}

}  // namespace
}  // namespace cgx::scheduler
