#include "daemon/data/data_agent.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

#include "daemon/base/clock.h"
#include "kernels/codec.h"
#include "proto/wire/ring.h"
#include "tests/allocations.h"

// GCC 12 takes the descriptors in Result<ChannelEnds> for the string of its Status (GCC bug
// 104336).
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"

namespace cgx::daemon {
namespace {

struct NoEvents final : scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view) override {}
};
struct NoAnswers final : SessionAnswers {
  void answer(SessionAnswer) override {}
};

// The agent of a daemon for one machine, driven by the test instead of by a thread.
class DataAgentTest : public ::testing::Test {
 protected:
  static DataOptions options() {
    DataOptions options;
    options.engine.lane = &kernels::best_lane();
    return options;
  }

  // The client's view of a session that is open.
  wire::SessionMemory open_session() {
    ChannelEnds ends = std::move(make_session_channel()).value();
    const int memory = ends.theirs.memory.get();
    region_ =
        std::move(SharedRegion::map(memory, CGX_SHM_BYTES, SharedRegion::Populate::kNo)).value();
    agent_.ask(
        {.session = 1, .request = 1, .body = OpenSession{{.job = "j"}, std::move(ends.ours)}});
    agent_.do_work(1);
    return wire::SessionMemory(region_.bytes().data());
  }

  EdgeCounters counters_;
  NoEvents events_;
  NoAnswers answers_;
  SharedRegion region_;
  scheduler::InlinePlanner planner_;
  DataAgent agent_{options(), {}, counters_, events_};
};

// The client saw the daemon awake, so it rang no doorbell; only a second look finds its record.
TEST_F(DataAgentTest, DoesNotFallAsleepOverARecordThatWasPublishedSilently) {
  agent_.connect(&answers_, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  const wire::SessionMemory client = open_session();
  EXPECT_TRUE(agent_.prepare_sleep());
  EXPECT_EQ(client.header->daemon_sleeping, 1u);
  agent_.woken({});
  EXPECT_EQ(client.header->daemon_sleeping, 0u);
  wire::SubmitProducer submits(client.submits, &client.header->submit_tail,
                               &client.header->submit_head);
  ASSERT_TRUE(submits.try_push({.kind = CGX_SUBMIT_TENSOR}));
  submits.publish();
  EXPECT_FALSE(agent_.prepare_sleep());
  EXPECT_EQ(client.header->daemon_sleeping, 0u);
  agent_.on_stop();
}

#ifdef CGX_COUNTS_ALLOCATIONS
// Names and shapes of tens of thousands are kept as the ipc agent decoded them.
TEST_F(DataAgentTest, CopiesNothingOfTheTensorsThatAreRegistered) {
  agent_.connect(&answers_, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  const wire::SessionMemory client = open_session();
  ASSERT_NE(client.header, nullptr);
  wire::CreateCommunicator create{.comm = 1, .name = "c"};
  create.members.resize(1);
  agent_.ask({.session = 1, .request = 2, .body = create});
  while (agent_.do_work(2) > 0) {
  }
  wire::RegisterTensors tensors{.comm = 1};
  for (int i = 0; i < 1000; ++i) {
    tensors.tensors.push_back({.name = std::string(200, 'x') + std::to_string(i)});
    tensors.tensors.back().shape = {2, 2};
  }
  agent_.ask({.session = 1, .request = 3, .body = std::move(tensors)});
  const uint64_t before = allocations;
  while (agent_.do_work(3) > 0) {
  }
  EXPECT_LE(allocations - before, 50);
  agent_.on_stop();
}
#endif

// The ipc agent then frees its number and its share, as of one that could not be mapped.
TEST_F(DataAgentTest, HandsBackAnArenaThatTheEngineRefuses) {
  struct Refused final : SessionAnswers {
    void answer(SessionAnswer answer) override {
      if (auto* mapped = std::get_if<ArenaMapped>(&answer.body)) arena.emplace(std::move(*mapped));
    }
    std::optional<ArenaMapped> arena;
  } refused;
  agent_.connect(&refused, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  const wire::SessionMemory client = open_session();
  ASSERT_NE(client.header, nullptr);
  const ChannelEnds ends = std::move(make_session_channel()).value();
  AddMappedArena arena{.arena = wire::kArenasMax};
  arena.region = std::move(SharedRegion::map(ends.theirs.memory.get(), CGX_SHM_BYTES,
                                             SharedRegion::Populate::kNo))
                     .value();
  agent_.ask({.session = 1, .request = 2, .body = std::move(arena)});
  agent_.do_work(2);
  ASSERT_TRUE(refused.arena.has_value());
  EXPECT_EQ(refused.arena->arena, wire::kArenasMax);
  EXPECT_EQ(refused.arena->reserved_bytes, uint64_t{CGX_SHM_BYTES});
  EXPECT_EQ(refused.arena->region.status().code(), StatusCode::kINVALID_ARGUMENT);
  agent_.on_stop();
}

// However many communicators there are, no round makes more than one of them into a snapshot.
TEST_F(DataAgentTest, MakesSnapshotsOneCommunicatorARound) {
  agent_.connect(&answers_, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  const wire::SessionMemory client = open_session();
  ASSERT_NE(client.header, nullptr);
  for (uint32_t comm = 0; comm < 3; ++comm) {
    wire::CreateCommunicator create;
    create.comm = comm;
    create.name = "c" + std::to_string(comm);
    create.members.resize(1);
    agent_.ask({.session = 1, .request = 2 + comm, .body = create});
  }
  while (agent_.do_work(2) > 0) {
  }
  EXPECT_TRUE(agent_.prepare_sleep()) << "nobody has asked";
  auto answer =
      std::async(std::launch::async, [&] { return agent_.snapshots().ask(20 * kSecond); });
  while (!agent_.snapshots().wanted()) std::this_thread::yield();
  for (int round = 0; round < 2; ++round) {
    agent_.do_work(3);
    EXPECT_FALSE(agent_.prepare_sleep()) << "it is half made";
    EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  }
  agent_.do_work(3);
  const auto shown = answer.get();
  ASSERT_TRUE(shown.ok()) << shown.status().to_string();
  ASSERT_EQ((*shown)->communicators.size(), 3u);
  EXPECT_EQ((*shown)->communicators[0].name, "c0");
  EXPECT_EQ((*shown)->communicators[2].name, "c2");
  EXPECT_EQ((*shown)->sessions.size(), 1u);
  agent_.on_stop();
}

// A client may ask for what takes long as often as it likes; frames and heartbeats go in between.
TEST_F(DataAgentTest, TakesNoMoreMessagesInARoundOnceTheyHaveTakenLong) {
  agent_.connect(&answers_, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  int taken = 0;
  const auto take_long = [&](scheduler::Engine&) {
    const uint64_t end = monotonic_ns() + kMillisecond;
    while (monotonic_ns() < end) {
    }
    ++taken;
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(agent_.run(take_long));
  for (int round = 1; round <= 3; ++round) {
    EXPECT_FALSE(agent_.prepare_sleep()) << "more wait";
    agent_.do_work(1);
    EXPECT_EQ(taken, round);
  }
  agent_.on_stop();
}

// Two in a row: the second is not begun before the first has been paid for.
TEST_F(DataAgentTest, GivesAskersAShareOfItsTime) {
  agent_.connect(&answers_, nullptr, &planner_);
  ASSERT_TRUE(agent_.on_start().ok());
  const auto ask = [&] {
    auto answer =
        std::async(std::launch::async, [&] { return agent_.snapshots().ask(20 * kSecond); });
    while (!agent_.snapshots().wanted()) std::this_thread::yield();
    return answer;
  };
  auto first = ask();
  const uint64_t now = monotonic_ns();
  agent_.do_work(now);
  ASSERT_TRUE(first.get().ok());
  auto second = ask();
  agent_.do_work(now);
  EXPECT_TRUE(agent_.prepare_sleep());
  const uint64_t due = agent_.next_deadline_ns();
  EXPECT_GT(due, now);
  EXPECT_LE(due, monotonic_ns() + 100 * kMillisecond);
  EXPECT_EQ(second.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  agent_.do_work(due);
  EXPECT_TRUE(second.get().ok());
  agent_.on_stop();
}

}  // namespace
}  // namespace cgx::daemon
