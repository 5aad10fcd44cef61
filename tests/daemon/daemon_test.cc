// The whole daemon in this process, on one machine, with clients over real sockets and rings.
#include "daemon/daemon.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "config/config.h"
#include "daemon/options.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/daemon/ipc/mini_rank.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;

class Quiet final : public scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view) override {}
};

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() {
    options.name = "test";
    options.recorder_events = 1024;
    options.ipc.socket.path = scratch.path() + "/cgxd.sock";
    auto started = Daemon::start(options, {}, events);
    CGX_ASSERT(started.ok());
    daemon = std::move(started).value();
    CGX_ASSERT(daemon->serve().ok());
  }
  const std::string& socket() const { return options.ipc.socket.path; }
  scheduler::Snapshot snapshot() { return daemon->operators().snapshot(10 * kSecond).value(); }
  uint64_t count(Counter counter) { return snapshot().counters[static_cast<size_t>(counter)]; }

  // Two ranks of one communicator, committed with one tensor, whose first 16 floats are looked at.
  struct Pair {
    Pair(const std::string& socket, const std::string& job, uint64_t elements = 16)
        : first(socket, job), second(socket, job) {
      first.start_joining(0, 2);
      second.start_joining(1, 2);
      EXPECT_EQ(first.finish_joining().code, StatusCode::kOK);
      EXPECT_EQ(second.finish_joining().code, StatusCode::kOK);
      std::thread other([&] { EXPECT_EQ(second.commit(elements).code, StatusCode::kOK); });
      EXPECT_EQ(first.commit(elements).code, StatusCode::kOK);
      other.join();
    }
    void expect_sum(uint64_t step) {
      for (int i = 0; i < 16; ++i) first.data()[i] = 1.0f + float(i), second.data()[i] = 10.0f;
      first.submit(step);
      second.submit(step);
      for (MiniRank* rank : {&first, &second}) {
        EXPECT_EQ(rank->completion().outcome, CGX_OUTCOME_RESULT);
        EXPECT_EQ(rank->completion().kind, CGX_COMPLETE_STEP);
        for (int i = 0; i < 16; ++i) EXPECT_EQ(rank->data()[i], 11.0f + float(i));
      }
    }
    MiniRank first, second;
  };

  ScratchDirectory scratch;
  Quiet events;
  DaemonOptions options;
  std::unique_ptr<Daemon> daemon;
};

TEST_F(DaemonTest, AddsTheTensorsOfTwoRanks) {
  Pair pair(socket(), "train");
  for (uint64_t step = 1; step <= 20; ++step) pair.expect_sum(step);
  EXPECT_EQ(count(Counter::ksteps_completed), 20u);
}

TEST_F(DaemonTest, ARingThatBreaksTheContractEndsThatSessionOnly) {
  Pair healthy(socket(), "healthy");
  MiniRank broken(socket(), "broken");
  broken.header().submit_tail = 1u << 30;
  broken.ring();
  EXPECT_EQ(broken.client().receive_reply().code, StatusCode::kPROTOCOL_ERROR);
  EXPECT_TRUE(broken.client().hung_up());
  healthy.expect_sum(1);
  EXPECT_EQ(count(Counter::kring_violations), 1u);
  EXPECT_EQ(snapshot().sessions.size(), 2u);
}

TEST_F(DaemonTest, ARecordThatAsksForWhatIsNotBuiltIsAnsweredByName) {
  Pair pair(socket(), "train");
  pair.first.push({.kind = CGX_SUBMIT_CALL, .collective = 3, .root = 1});
  const cgx_completion_record answer = pair.first.completion();
  EXPECT_EQ(answer.kind, CGX_COMPLETE_CALL);
  EXPECT_EQ(answer.status, static_cast<uint16_t>(StatusCode::kUNIMPLEMENTED));
  EXPECT_NE(pair.first.text(answer).find("broadcast"), std::string::npos);
  pair.first.push({.kind = CGX_SUBMIT_TENSOR, .step = 1, .word = 2});
  const cgx_completion_record waits = pair.first.completion();
  EXPECT_EQ(waits.status, static_cast<uint16_t>(StatusCode::kINVALID_ARGUMENT));
  EXPECT_NE(pair.first.text(waits).find("word"), std::string::npos);
  pair.expect_sum(1);  // nothing else happened
}

TEST_F(DaemonTest, ARecordOfAnUnknownKindEndsTheSession) {
  MiniRank rank(socket(), "train");
  rank.push({.kind = 99});
  EXPECT_EQ(rank.client().receive_reply().code, StatusCode::kPROTOCOL_ERROR);
}

TEST_F(DaemonTest, BeatsForAnIdleClientSoThatItCanTellAStoppedDaemon) {
  MiniRank rank(socket(), "idle");
  std::atomic_ref<uint32_t> beat(rank.header().daemon_beat);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (int beats = 0; beats < 3; ++beats) {
    const uint32_t before = beat.load();
    EXPECT_NE(before, 0u);
    while (beat.load() == before && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_NE(beat.load(), before);
  }
}

TEST_F(DaemonTest, TellsItsTimeOutOfCommunicatorsAlsoAfterAChange) {
  MiniRank before(socket(), "early");
  const auto told = [](MiniRank& rank) {
    return std::atomic_ref<uint64_t>(rank.header().communicator_ms).load();
  };
  EXPECT_EQ(told(before), options.timeouts.communicator_ns / kMillisecond);
  scheduler::Engine::Changes changes{.policy = options.policy,
                                     .job_weights = {},
                                     .timeouts = options.timeouts,
                                     .limits = options.limits};
  changes.timeouts.communicator_ns = 4 * 3600 * kSecond;
  ASSERT_TRUE(daemon->change(changes));
  EXPECT_EQ(told(before), 4u * 3600 * 1000);
  MiniRank after(socket(), "late");
  EXPECT_EQ(told(after), 4u * 3600 * 1000);
}

TEST_F(DaemonTest, OthersLearnWhichRankIsGone) {
  auto pair = std::make_unique<Pair>(socket(), "train");
  Pair other(socket(), "other job");
  pair->first.submit(1);
  pair->second.client().close();
  const cgx_completion_record record = pair->first.completion();
  EXPECT_EQ(record.outcome, CGX_OUTCOME_ERROR);
  EXPECT_EQ(static_cast<StatusCode>(record.status), StatusCode::kRANK_LOST);
  EXPECT_NE(pair->first.text(record).find("rank 1"), std::string::npos);
  other.expect_sum(1);
}

int lines_of(const char* path, const char* containing) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);)
    count += line.find(containing) != std::string::npos;
  return count;
}

TEST_F(DaemonTest, SessionsLeaveNothingBehind) {
  const int own = lines_of("/proc/self/maps", "memfd:");  // the recorder's
  { MiniRank warm(socket(), "train"); }
  for (int i = 0; i < 50; ++i) {
    MiniRank rank(socket(), "train");
    rank.start_joining(0, 1);
    EXPECT_EQ(rank.finish_joining().code, StatusCode::kOK);
    EXPECT_EQ(rank.commit(16).code, StatusCode::kOK);
    rank.submit(1);
    EXPECT_EQ(rank.completion().outcome, CGX_OUTCOME_RESULT);
    if (i % 2) rank.client().send(wire::Goodbye{}, 0);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (lines_of("/proc/self/maps", "memfd:") > own &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(lines_of("/proc/self/maps", "memfd:"), own);
  EXPECT_EQ(daemon->sessions_open(), 0u);
  EXPECT_EQ(snapshot().sessions.size(), 0u);
  EXPECT_EQ(snapshot().communicators.size(), 0u);
}

TEST_F(DaemonTest, ASecondDaemonOnTheSameSocketIsRefused) {
  const auto second = Daemon::start(options, {}, events);
  EXPECT_EQ(second.status().code(), StatusCode::kALREADY_EXISTS);
  Pair pair(socket(), "train");
  pair.expect_sum(1);
}

TEST_F(DaemonTest, OperatorsSeeSessionsAndCountersOfTheEdges) {
  MiniRank rank(socket(), "train");
  RawClient junk(socket());
  junk.send_bytes(std::as_bytes(std::span("junk")));
  EXPECT_TRUE(junk.receive().has_value());
  EXPECT_EQ(count(Counter::kcontrol_junk), 1u);
  const scheduler::Snapshot shown = snapshot();
  ASSERT_EQ(shown.sessions.size(), 1u);
  EXPECT_EQ(shown.sessions[0].job, "train");
  EXPECT_EQ(shown.sessions[0].arena_bytes, MiniRank::kArenaBytes);
}

TEST_F(DaemonTest, MeasuresHowBusyItsDataThreadIs) {
  const scheduler::DutySnapshot before = snapshot().duty;
  Pair pair(socket(), "train");
  for (uint64_t step = 1; step <= 20; ++step) pair.expect_sum(step);
  const scheduler::DutySnapshot after = snapshot().duty;
  EXPECT_GT(after.rounds, before.rounds);
  EXPECT_GT(after.busy_ns, before.busy_ns);
  EXPECT_GT(after.cpu_ns, before.cpu_ns);
}

TEST_F(DaemonTest, APolicyForAnUnknownJobIsAnErrorAtOnce) {
  const auto change =
      daemon->operators().apply_policy({.job = "none"}, {}, false, 0, {10 * kSecond});
  EXPECT_EQ(change.status().code(), StatusCode::kNOT_FOUND) << change.status().to_string();
}

TEST_F(DaemonTest, IsQuietWhenNothingIsInFlight) {
  Pair pair(socket(), "train");
  EXPECT_EQ(daemon->in_flight(), std::vector<std::string>{});
  pair.first.submit(1);
  pair.second.submit(1);
  pair.first.completion();
  pair.first.completion();
  EXPECT_EQ(daemon->in_flight(), std::vector<std::string>{});
}

TEST(DaemonStartTest, RefusesToSpinAlwaysWhenCoresAreShort) {
  ScratchDirectory scratch;
  Quiet events;
  DaemonOptions options;
  options.ipc.socket.path = scratch.path() + "/cgxd.sock";
  options.always_spin = true;
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  const auto daemon = Daemon::start(options, {}, events);
  ::sched_setaffinity(0, sizeof(before), &before);
  EXPECT_EQ(daemon.status().code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(daemon.status().message().find("may use 1"), std::string::npos);
}

// What starts it may still find that it cannot serve operators.
TEST(DaemonStartTest, OpensNoSessionBeforeItServes) {
  ScratchDirectory scratch;
  Quiet events;
  DaemonOptions options;
  options.ipc.socket.path = scratch.path() + "/cgxd.sock";
  auto daemon = std::move(Daemon::start(options, {}, events)).value();
  RawClient client(options.ipc.socket.path);
  client.send(wire::Hello{"train", "test"}, 1);
  EXPECT_EQ(daemon->sessions_ever(), 0u);
  daemon.reset();
  EXPECT_TRUE(client.hung_up());
}

TEST(DaemonStartTest, NamesAMeshAddressNobodyCanReach) {
  ScratchDirectory scratch;
  Quiet events;
  DaemonOptions options;
  options.ipc.socket.path = scratch.path() + "/cgxd.sock";
  options.mesh_listen = "0.0.0.0:0";
  options.trusted_networks = {"203.0.113.0/24"};
  const auto daemon = Daemon::start(options, {}, events);
  EXPECT_NE(daemon.status().message().find("mesh.trusted_networks"), std::string::npos);
}

TEST_F(DaemonTest, RecordsWhatItsRanksDo) {
  using scheduler::EventKind;
  Pair pair(socket(), "recorded", /*elements=*/8192);  // enough for its arithmetic to be timed
  pair.expect_sum(1);
  const auto reading = daemon->operators().events(0);
  ASSERT_TRUE(reading.ok()) << reading.status().to_string();
  const auto told = [&](EventKind kind) {
    return std::count_if(reading->events.begin(), reading->events.end(),
                         [kind](const scheduler::Event& event) { return event.kind == kind; });
  };
  EXPECT_EQ(told(EventKind::kmade), 1);
  EXPECT_EQ(told(EventKind::karrival), 2);
  EXPECT_EQ(told(EventKind::kreduce), 1);
  EXPECT_EQ(told(EventKind::kcompleted), 2);
  EXPECT_EQ(told(EventKind::kstep_completed), 1);
  for (const scheduler::Event& event : reading->events) {
    EXPECT_NEAR(static_cast<double>(event.time_ns), static_cast<double>(monotonic_ns()), 60e9);
    if (event.kind == EventKind::kreduce) {
      EXPECT_GT(event.b, 0u) << "it took no time";
      EXPECT_LT(event.b, 10 * kSecond);
    }
  }
}

TEST(DaemonWithoutARecorder, SaysWhichKeyTurnsItOn) {
  const ScratchDirectory scratch;
  Quiet events;
  DaemonOptions options;
  options.ipc.socket.path = scratch.path() + "/cgxd.sock";
  const auto daemon = Daemon::start(options, {}, events);
  ASSERT_TRUE(daemon.ok()) << daemon.status().to_string();
  const auto reading = (*daemon)->operators().events(0);
  EXPECT_EQ(reading.status().code(), StatusCode::kUNAVAILABLE);
  EXPECT_NE(reading.status().message().find("recorder.events is 0"), std::string::npos);
}

TEST(DaemonOptionsTest, RoundTheRecorderUpToAPowerOfTwo) {
  for (const auto& [said, made] :
       {std::pair{0u, 0u}, {1u, 1u}, {65536u, 65536u}, {65537u, 131072u}}) {
    v1::Config config;
    config::fill_defaults(config);
    config.mutable_recorder()->set_events(said);
    const Result<DaemonOptions> options = daemon_options(config);
    ASSERT_TRUE(options.ok()) << options.status().to_string();
    EXPECT_EQ(options->recorder_events, made);
  }
}

}  // namespace
}  // namespace cgx::daemon
