// Ranks that meet, before anybody knows the members: who is refused, who is told of whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/cluster.h"

namespace cgx::sim {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint32_t kMeet = 11;
constexpr uint32_t kHandle = 7;  // of the communicator in each session

// A process that the cluster does not count among its ranks.
struct Stranger {
  explicit Stranger(scheduler::Engine& engine, scheduler::SessionOptions options = {.job = "job"})
      : engine(engine), session(engine.open_session(options, rank).value()) {}
  wire::Reply meet(uint32_t number, const std::string& name = "world", uint32_t handle = kHandle) {
    engine.meet(session, kMeet, {.comm = handle, .name = name, .rank = number});
    return rank.replies.at(kMeet);
  }
  Rank rank{4096};
  // Joins under the number `message` says; nothing: no reply yet.
  void create(const wire::CreateCommunicator& message) {
    rank.replies.erase(Cluster::kCreate);
    engine.create_communicator(session, Cluster::kCreate, message);
  }
  scheduler::Engine& engine;
  scheduler::SessionId session;
};

wire::Reply meet(Cluster& cluster, uint32_t rank) {
  Rank& process = cluster.rank(rank);
  cluster.engine(process.machine)
      .meet(process.session, kMeet, {.comm = kHandle, .name = "world", .rank = rank});
  return process.replies.at(kMeet);
}

TEST(Meeting, OneProcessIsARankUntilItGivesUp) {
  Cluster cluster({.ranks_per_machine = {1}});
  scheduler::Engine& engine = cluster.engine(0);
  Stranger first(engine, {.job = "job", .client = "train", .pid = 77}), second(engine);
  for (int time = 0; time < 2; ++time) {  // whoever has come may ask again
    EXPECT_EQ(first.meet(1).code, StatusCode::kOK);
    const wire::Reply refused = second.meet(1);
    EXPECT_EQ(refused.code, StatusCode::kALREADY_EXISTS);
    EXPECT_THAT(refused.message, HasSubstr("rank 1 of communicator 'world' of job 'job'"));
    EXPECT_THAT(refused.message, HasSubstr("is alive: process 77"));
  }
  engine.close_communicator(first.session, Cluster::kClose, {.comm = kHandle});
  EXPECT_EQ(second.meet(1).code, StatusCode::kOK);
  EXPECT_EQ(first.meet(1).code, StatusCode::kALREADY_EXISTS);
}

TEST(Meeting, RanksOfOtherUsersJobsAndCommunicatorsAreOthers) {
  Cluster cluster({.ranks_per_machine = {1}});
  scheduler::Engine& engine = cluster.engine(0);
  Stranger first(engine), other_user(engine, {.job = "job", .uid = 5}),
      other_job(engine, {.job = "jobs"});
  EXPECT_EQ(first.meet(1).code, StatusCode::kOK);
  EXPECT_EQ(first.meet(1, "worlds", kHandle + 1).code, StatusCode::kOK);
  EXPECT_EQ(other_user.meet(1).code, StatusCode::kOK);
  EXPECT_EQ(other_job.meet(1).code, StatusCode::kOK);
  EXPECT_EQ(Stranger(engine).meet(0).code, StatusCode::kOK);
}

// Ranks of one job may lie in several containers, so a container is no part of what a job is.
TEST(Meeting, AJobOfAnotherContainerUnderTheSameNameIsToldToTakeAnother) {
  Cluster cluster({.ranks_per_machine = {2, 1}});
  scheduler::Engine& engine = cluster.engine(0);
  wire::CreateCommunicator of_rank[2];
  for (const uint32_t rank : {0u, 1u}) {
    cluster.create_on(rank, [&](auto& message) {
      of_rank[rank] = message;
      message.name = "others";
    });
    of_rank[rank].comm = kHandle;
  }
  Stranger first(engine, {.job = "job", .holder = "uid 0 in container a"}),
      second(engine, {.job = "job", .holder = "uid 0 in container b"});
  const auto expect_told = [](const wire::Reply& refused, StatusCode code) {
    EXPECT_EQ(refused.code, code);
    EXPECT_THAT(refused.message, HasSubstr("communicator 'world' of job 'job'"));
    EXPECT_THAT(refused.message, HasSubstr("another job of this user needs another name"));
  };
  EXPECT_EQ(first.meet(0).code, StatusCode::kOK);
  expect_told(second.meet(0), StatusCode::kALREADY_EXISTS);
  first.create(of_rank[0]);
  expect_told(second.meet(0), StatusCode::kALREADY_EXISTS);
  wire::CreateCommunicator theirs = of_rank[1];
  theirs.job_key.fill(std::byte(7));
  std::swap(theirs.members[1], theirs.members[2]);  // they have another rank here
  theirs.rank = 2;
  second.create(theirs);
  expect_told(second.rank.replies.at(Cluster::kCreate), StatusCode::kINVALID_ARGUMENT);
  Stranger companion(engine, {.job = "job", .holder = "uid 0 in container c"});
  companion.create(of_rank[1]);
  EXPECT_EQ(companion.rank.replies.count(Cluster::kCreate), 0u) << "the first job waits on";
}

TEST(Meeting, ASessionMeetsInNoMoreCommunicatorsThanItMayHave) {
  Cluster cluster({.ranks_per_machine = {1},
                   .limits = [](uint32_t) { return scheduler::Limits{.communicators = 2}; }});
  Stranger stranger(cluster.engine(0));
  EXPECT_EQ(stranger.meet(0, "a", 1).code, StatusCode::kOK);
  EXPECT_EQ(stranger.meet(0, "b", 2).code, StatusCode::kOK);
  const wire::Reply refused = stranger.meet(0, "c", 3);
  EXPECT_EQ(refused.code, StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.message, HasSubstr("limits.communicators (2)"));
  cluster.engine(0).close_communicator(stranger.session, Cluster::kClose, {.comm = 2});
  EXPECT_EQ(stranger.meet(0, "", 2).code, StatusCode::kINVALID_ARGUMENT);
}

TEST(Meeting, ARankThatHasJoinedIsKnownOnEveryMachineOfItsCommunicator) {
  for (const uint32_t machine : {0u, 1u}) {
    Cluster cluster({.ranks_per_machine = {1, 2}});
    cluster.create();
    Stranger stranger(cluster.engine(machine));
    for (const uint32_t rank : {0u, 1u, 2u}) {
      const wire::Reply refused = stranger.meet(rank);
      EXPECT_EQ(refused.code, StatusCode::kALREADY_EXISTS);
      EXPECT_THAT(refused.message, HasSubstr("rank " + std::to_string(rank) + " of communicator"));
      EXPECT_THAT(refused.message, HasSubstr("has already joined and is alive"));
    }
    EXPECT_EQ(stranger.meet(3).code, StatusCode::kOK) << "it has three ranks";
    cluster.engine(machine).close_communicator(stranger.session, Cluster::kClose,
                                               {.comm = kHandle});
    cluster.close_communicator(1);
    cluster.run_for(kSecond / 10);
    EXPECT_EQ(stranger.meet(1).code, StatusCode::kOK) << "it has left";
  }
}

TEST(Meeting, ARankOfACommunicatorThatFailedMayComeAgain) {
  Cluster cluster({.ranks_per_machine = {1, 1}});
  cluster.create();
  cluster.kill_rank(1);
  cluster.run_for(kSecond / 10);
  EXPECT_EQ(Stranger(cluster.engine(0)).meet(1).code, StatusCode::kOK);
  EXPECT_EQ(Stranger(cluster.engine(1)).meet(1).code, StatusCode::kOK);
}

TEST(Meeting, WhoStillHoldsAFailedCommunicatorIsNamedToAnotherMeeting) {
  Cluster cluster({.ranks_per_machine = {2}});
  wire::CreateCommunicator of_rank[2];
  for (const uint32_t rank : {0u, 1u}) {
    cluster.create_on(rank, [&](auto& message) {
      of_rank[rank] = message;
      message.name = "another";
    });
    of_rank[rank].comm = kHandle;
  }
  scheduler::Engine& engine = cluster.engine(0);
  Stranger keeper(engine, {.job = "job", .pid = 77}), victim(engine, {.job = "job", .pid = 78});
  keeper.create(of_rank[0]);
  victim.create(of_rank[1]);
  cluster.run_for(kSecond / 10);
  ASSERT_EQ(keeper.rank.replies.at(Cluster::kCreate).code, StatusCode::kOK);
  engine.close_session(victim.session, {StatusCode::kRANK_LOST, "killed by the test"});
  cluster.run_for(kSecond / 10);
  Stranger first(engine), second(engine);
  const auto meet_anew = [&] {
    for (const uint32_t rank : {0u, 1u}) {
      wire::CreateCommunicator message = of_rank[rank];
      message.meeting = 2;
      (rank == 0 ? first : second).create(message);
    }
    cluster.run_for(kSecond / 10);
  };
  meet_anew();
  for (Stranger* const each : {&first, &second}) {
    const wire::Reply refused = each->rank.replies.at(Cluster::kCreate);
    EXPECT_EQ(refused.code, StatusCode::kALREADY_EXISTS);
    EXPECT_THAT(refused.message, HasSubstr("process 77 still holds communicator 'world'"));
    EXPECT_THAT(refused.message, HasSubstr("of an earlier meeting, which failed (rank 1 of"));
  }
  engine.close_communicator(keeper.session, Cluster::kClose, {.comm = kHandle});
  cluster.run_for(kSecond / 10);
  meet_anew();
  for (Stranger* const each : {&first, &second}) {
    EXPECT_EQ(each->rank.replies.at(Cluster::kCreate).code, StatusCode::kOK);
  }
}

TEST(Meeting, ARankThatGoesIsNamedToThoseThatMeetBesideIt) {
  for (const bool killed : {true, false}) {
    Cluster cluster({.ranks_per_machine = {3}});
    Stranger elsewhere(cluster.engine(0));
    EXPECT_EQ(elsewhere.meet(0, "worlds").code, StatusCode::kOK);
    for (const uint32_t rank : {0u, 1u, 2u}) EXPECT_EQ(meet(cluster, rank).code, StatusCode::kOK);
    killed ? cluster.kill_rank(1) : cluster.say_goodbye(1);
    for (const uint32_t rank : {0u, 2u}) {
      const wire::Reply told = meet(cluster, rank);
      EXPECT_EQ(told.code, StatusCode::kRANK_LOST);
      EXPECT_EQ(told.message, std::string("rank 1 of communicator 'world' of job 'job' is gone: ") +
                                  (killed ? "killed by the test" : "it left"));
      cluster.close_communicator(rank);  // as libcgx does
      EXPECT_EQ(meet(cluster, rank).code, StatusCode::kOK) << "the next meeting is another one";
    }
    EXPECT_EQ(elsewhere.meet(0, "worlds").code, StatusCode::kOK);
  }
}

// Rank 1 has met the others, and dies before its daemon hears who they are.
TEST(Meeting, ARankThatDiesBeforeItJoinsIsNamedOnEveryMachine) {
  Cluster cluster({.ranks_per_machine = {1, 2}});
  for (const uint32_t rank : {0u, 1u, 2u}) EXPECT_EQ(meet(cluster, rank).code, StatusCode::kOK);
  for (const uint32_t rank : {0u, 2u}) cluster.create_on(rank, [](auto&) {});
  cluster.run_for(kSecond / 10);
  EXPECT_EQ(cluster.rank(0).replies.count(Cluster::kCreate), 0u);
  cluster.kill_rank(1);
  cluster.run_for(kSecond / 10);
  for (const uint32_t rank : {0u, 2u}) {
    ASSERT_EQ(cluster.rank(rank).replies.count(Cluster::kCreate), 1u);
    const wire::Reply& told = cluster.rank(rank).replies[Cluster::kCreate];
    EXPECT_EQ(told.code, StatusCode::kRANK_LOST);
    EXPECT_THAT(told.message, HasSubstr("rank 1 of communicator 'world' of job 'job' is gone"));
  }
}

}  // namespace
}  // namespace cgx::sim
