// What operators ask of an engine that answers late, or not at all.
#include "daemon/operators/mailbox_operator.h"

#include <gtest/gtest.h>

#include "daemon/base/clock.h"
#include "scheduler/planners/planner_port.h"

// GCC 12 takes the descriptors in Result<ChannelEnds> for the string of its Status (GCC bug
// 104336).
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"

namespace cgx::daemon {
namespace {

class NoAnswers final : public SessionAnswers {
  void answer(SessionAnswer) override {}
};
class NoEvents final : public scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view) override {}
};

// The agent is driven by the test instead of by a thread.
class MailboxOperatorTest : public ::testing::Test {
 protected:
  MailboxOperatorTest() {
    agent_.connect(&answers_, nullptr, &planner_);
    EXPECT_TRUE(agent_.on_start().ok());
    ChannelEnds ends = std::move(make_session_channel()).value();
    ask(OpenSession{{.job = "j"}, std::move(ends.ours)});
    const ChannelEnds memory = std::move(make_session_channel()).value();
    AddMappedArena arena;
    arena.region = std::move(SharedRegion::map(memory.theirs.memory.get(), CGX_SHM_BYTES,
                                               SharedRegion::Populate::kNo))
                       .value();
    ask(std::move(arena));
    wire::CreateCommunicator create{.comm = 1, .name = "c"};
    create.members.resize(1);
    ask(std::move(create));
    wire::RegisterTensors tensors{.comm = 1};
    tensors.tensors.push_back({.name = "w", .elements = 1024, .shape = {1024}});
    ask(std::move(tensors));
    ask(wire::Commit{.comm = 1, .tensors = 1});
  }
  ~MailboxOperatorTest() override { agent_.on_stop(); }

  static DataOptions options() {
    DataOptions options;
    options.engine.lane = &kernels::best_lane();
    return options;
  }
  template <typename Body>
  void ask(Body body) {
    agent_.ask({.session = 1, .request = ++requests_, .body = std::move(body)});
    work();
  }
  void work() {
    for (int i = 0; i < 1'000; ++i) agent_.do_work(now_ns_ += kMillisecond);
  }
  // Of the policy that is in force.
  uint64_t version() {
    uint64_t version = 0;
    const scheduler::PolicyRequest request{.job = "j", .communicator = "c", .dry_run = true};
    EXPECT_TRUE(agent_.run([&](scheduler::Engine& engine) {
      engine.apply_policy(request, [&](const Result<scheduler::PolicyChange>& change) {
        ASSERT_TRUE(change.ok()) << change.status().to_string();
        version = change->policy_version;
      });
    }));
    work();
    return version;
  }

  NoAnswers answers_;
  NoEvents events_;
  EdgeCounters counters_;
  scheduler::InlinePlanner planner_;
  DataAgent agent_{options(), {}, counters_, events_};
  ShareBoard shares_;
  MailboxOperator operators_{agent_, {}, shares_};
  uint32_t requests_ = 0;
  uint64_t now_ns_ = kSecond;
};

TEST_F(MailboxOperatorTest, AChangeThatHasNotBegunInTimeIsNotMade) {
  const uint64_t before = version();
  ASSERT_NE(before, 0u);
  const auto change =
      operators_.apply_policy({.job = "j", .communicator = "c"}, {}, false, 0, {kMillisecond});
  EXPECT_EQ(change.status().code(), StatusCode::kTIMED_OUT);
  EXPECT_NE(change.status().message().find("nothing was changed"), std::string::npos);
  work();
  EXPECT_EQ(version(), before);
}

TEST_F(MailboxOperatorTest, WaitsForNobodyWhoHasGone) {
  const auto found = operators_.explain({.job = "j", .communicator = "c"}, "w",
                                        {3'600 * kSecond, [] { return false; }});
  EXPECT_EQ(found.status().code(), StatusCode::kTIMED_OUT);
}

}  // namespace
}  // namespace cgx::daemon
