#include "daemon/data_agent.h"

#include <gtest/gtest.h>

#include "kernels/codec.h"
#include "proto/wire/ring.h"

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

}  // namespace
}  // namespace cgx::daemon
