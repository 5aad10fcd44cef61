#include "daemon/data/duty_cycle.h"

#include <gtest/gtest.h>

namespace cgx::daemon {
namespace {

constexpr uint64_t kMs = 1'000'000, kS = 1'000'000'000;
constexpr const char* kRest = "gradients and frames";

uint64_t cpu_ns = 0;  // of the thread, in these tests

class DutyCycleTest : public ::testing::Test {
 protected:
  void SetUp() override { cpu_ns = 0; }
  // A round that works for `wall`, of which the thread had the core for `cpu`.
  void round(uint64_t wall, uint64_t cpu) {
    duty_.begin_round(now_);
    duty_.worked();
    now_ += wall;
    cpu_ns += cpu;
  }
  void sleep(uint64_t ns) {
    duty_.pause(now_);
    now_ += ns;
  }
  uint64_t now_ = 100 * kS;
  DutyCycle duty_{[] { return cpu_ns; }};
};

TEST_F(DutyCycleTest, KeepsTheLongestRoundByProcessorTime) {
  round(3 * kMs, 2 * kMs);
  round(9 * kMs, 1 * kMs);  // another process had the core
  sleep(kMs);
  const scheduler::DutySnapshot shown = duty_.snapshot(now_);
  EXPECT_EQ(shown.longest.cpu_ns, 2 * kMs);
  EXPECT_EQ(shown.longest.wall_ns, 3 * kMs);
  EXPECT_EQ(shown.longest.what, kRest);
  EXPECT_EQ(shown.busy_ns, 12 * kMs);
  EXPECT_EQ(shown.rounds, 2u);
  EXPECT_EQ(shown.cpu_ns, 3 * kMs);
}

TEST_F(DutyCycleTest, CountsNoSleepAndNoRoundThatFoundNothing) {
  round(kMs, kMs);
  sleep(kS);
  duty_.begin_round(now_);  // looks, finds nothing
  now_ += 5 * kMs;
  sleep(kS);
  EXPECT_EQ(duty_.snapshot(now_).busy_ns, kMs);
  EXPECT_EQ(duty_.snapshot(now_).longest.wall_ns, kMs);
}

TEST_F(DutyCycleTest, NamesWhatTookMostOfARound) {
  duty_.begin_round(now_);
  duty_.worked();
  duty_.took("an operator's request", kMs);
  duty_.took("a commit", 4 * kMs);
  now_ += 6 * kMs;
  cpu_ns += 6 * kMs;
  duty_.begin_round(now_);
  EXPECT_EQ(duty_.snapshot(now_).longest.what, "a commit");
}

TEST_F(DutyCycleTest, BlamesNobodyForALittle) {
  duty_.begin_round(now_);
  duty_.worked();
  duty_.took("a commit", kMs);
  now_ += 6 * kMs;
  cpu_ns += 6 * kMs;
  duty_.begin_round(now_);
  EXPECT_EQ(duty_.snapshot(now_).longest.what, kRest);
}

TEST_F(DutyCycleTest, ForgetsALongRoundAfterAMinute) {
  round(8 * kMs, 8 * kMs);
  sleep(30 * kS);
  round(2 * kMs, 2 * kMs);
  sleep(20 * kS);
  EXPECT_EQ(duty_.snapshot(now_).longest_lately.cpu_ns, 8 * kMs);
  sleep(20 * kS);
  EXPECT_EQ(duty_.snapshot(now_).longest_lately.cpu_ns, 2 * kMs);
  sleep(60 * kS);
  EXPECT_EQ(duty_.snapshot(now_).longest_lately.cpu_ns, 0u);
  EXPECT_EQ(duty_.snapshot(now_).longest.cpu_ns, 8 * kMs);
}

TEST_F(DutyCycleTest, WarnsOnceOfWhatTookVeryLong) {
  round(49 * kMs, 49 * kMs);
  sleep(kMs);
  EXPECT_EQ(duty_.take_warning().cpu_ns, 0u);
  round(70 * kMs, 60 * kMs);
  sleep(kMs);
  EXPECT_EQ(duty_.take_warning().cpu_ns, 60 * kMs);
  EXPECT_EQ(duty_.take_warning().cpu_ns, 0u);
}

TEST(ThreadCpu, RunsWhileThisThreadDoes) {
  const uint64_t before = thread_cpu_ns();
  while (thread_cpu_ns() < before + kMs) {
  }
  EXPECT_GE(thread_cpu_ns(), before + kMs);
}

}  // namespace
}  // namespace cgx::daemon
