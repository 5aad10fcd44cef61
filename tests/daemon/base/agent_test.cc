#include "daemon/base/agent.h"

#include <gtest/gtest.h>

#include "daemon/base/clock.h"
#include "daemon/base/mailbox.h"

namespace cgx::daemon {
namespace {

using Next = IdleStrategy::Next;

TEST(IdleStrategyTest, SleepsAtOnceWhenNothingIsInFlight) {
  IdleStrategy idle(20'000);
  EXPECT_EQ(idle.after_round(1'000'000, 1, Spin::kNo), Next::kWork);
  EXPECT_EQ(idle.after_round(1'000'001, 0, Spin::kNo), Next::kSleep);
}

TEST(IdleStrategyTest, SpinsForItsTimeAfterTheLastWorkWhileSomethingIsInFlight) {
  IdleStrategy idle(20'000);
  idle.after_round(1'000'000, 1, Spin::kBriefly);  // a round that took 5 ms
  EXPECT_EQ(idle.after_round(6'000'000, 0, Spin::kBriefly), Next::kWork);
  EXPECT_EQ(idle.after_round(6'019'999, 0, Spin::kBriefly), Next::kWork);
  EXPECT_EQ(idle.after_round(6'020'000, 0, Spin::kBriefly), Next::kSleep);
}

TEST(IdleStrategyTest, NeverSpinsWithoutSpinTime) {
  IdleStrategy idle(0);
  idle.after_round(1'000'000, 1, Spin::kBriefly);
  EXPECT_EQ(idle.after_round(1'000'000, 0, Spin::kBriefly), Next::kSleep);
}

TEST(IdleStrategyTest, NeverSleepsWhenAskedToSpinAlways) {
  IdleStrategy idle(0);
  EXPECT_EQ(idle.after_round(1'000'000'000, 0, Spin::kAlways), Next::kWork);
}

// Work at every 100 us; an answer comes `after_ns` later. Rounds of 1 us; how many of them spun.
uint32_t spins(IdleStrategy& idle, uint64_t& now_ns, uint32_t errands, uint64_t after_ns) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < errands; ++i) {
    const uint64_t start_ns = now_ns;
    idle.after_round(now_ns, 1, Spin::kBriefly);
    while (now_ns < start_ns + after_ns) {
      now_ns += 1'000;
      if (idle.after_round(now_ns, 0, Spin::kBriefly) == Next::kSleep) break;
      ++count;
    }
    now_ns = start_ns + after_ns;
    idle.after_round(now_ns, 1, Spin::kBriefly);
    now_ns = start_ns + 100'000;
    idle.after_round(now_ns, 0, Spin::kNo);
  }
  return count;
}

TEST(IdleStrategyTest, GivesUpSpinningWhereItDoesNotPayAndProbesNowAndThen) {
  IdleStrategy idle(20'000);
  uint64_t now_ns = 1'000'000;
  EXPECT_GT(spins(idle, now_ns, IdleStrategy::kCreditMax, 50'000), 0u);
  const uint32_t rest = spins(idle, now_ns, 10 * IdleStrategy::kProbeEvery, 50'000);
  EXPECT_GT(rest, 0u);
  EXPECT_LE(rest, 10 * 20u);
}

TEST(IdleStrategyTest, SpinsAgainOnceAProbeHasPaid) {
  IdleStrategy idle(20'000);
  uint64_t now_ns = 1'000'000;
  spins(idle, now_ns, 100, 50'000);
  spins(idle, now_ns, 2 * IdleStrategy::kProbeEvery, 10'000);
  EXPECT_GE(spins(idle, now_ns, 10, 10'000), 10 * 8u);
}

// Counts messages; sleeps in between.
class Counting final : public Agent {
 public:
  Mailbox<std::promise<int>> inbox{4};
  Status start_status;
  int stopped = 0;

  std::string_view name() const override { return "counting"; }
  Status on_start() override {
    owner.bind();
    return start_status.ok() ? poller().add(inbox.event_fd(), EPOLLIN | EPOLLET, 0) : start_status;
  }
  void on_stop() override { ++stopped; }
  int do_work(uint64_t) override {
    owner.check();
    return inbox.drain(1, [this](std::promise<int> message) { message.set_value(++count); });
  }
  uint64_t next_deadline_ns() const override { return kNever; }
  bool prepare_sleep() override { return inbox.empty(); }

  ThreadOwner owner;
  int count = 0;
};

TEST(AgentThreadTest, WakesASleepingAgentForEachMessage) {
  Counting agent;
  auto thread = AgentThread::start(agent);
  ASSERT_TRUE(thread.ok());
  for (int i = 1; i <= 1000; ++i) {  // the answer is awaited, so the agent sleeps again each time
    std::promise<int> message;
    std::future<int> answer = message.get_future();
    ASSERT_TRUE(agent.inbox.post(std::move(message)));
    ASSERT_EQ(answer.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    ASSERT_EQ(answer.get(), i);
  }
}

TEST(AgentThreadTest, ReportsWhyAnAgentDidNotStart) {
  Counting agent;
  agent.start_status = internal_error("no");
  EXPECT_EQ(AgentThread::start(agent).status(), internal_error("no"));
  EXPECT_EQ(agent.stopped, 0);
}

TEST(AgentThreadTest, StopsASleepingAgentOnce) {
  Counting agent;
  auto thread = AgentThread::start(agent);
  ASSERT_TRUE(thread.ok());
  (*thread)->stop();
  (*thread)->stop();
  EXPECT_EQ(agent.stopped, 1);
}

}  // namespace
}  // namespace cgx::daemon
