#include "scheduler/communicator/joining.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

struct NoPort final : SessionPort {
  void complete(cgx_completion_record, std::string_view) override {}
  void reply(uint32_t, const wire::Reply&) override {}
};

// Ranks 0 and 1 on machine 0, rank 2 on machine 1; how one of the machines sees
// that.
struct JoiningTest : ::testing::Test {
  NoPort port;
  Members members;
  wire::CreateCommunicator first;

  JoiningTest() {
    members.machine_of_rank = {0, 0, 1};
    members.lowest_rank = {0, 2};
    members.addresses.resize(2);
    members.devices.resize(2);
    members.instances = {{1, 2}, {3, 4}};
    members.name = "world";
    members.job = "job";
    members.local = {{.rank = 0, .session = {}}, {.rank = 1, .session = {}}};
    first.name = "world";
    first.first_step = 6;
    first.meeting = 2;
    first.job_key[0] = std::byte{1};
    for (const uint32_t machine : members.machine_of_rank) {
      first.members.push_back({members.instances[machine], "", {}});
    }
  }
  Joining joining() const { return {members, first}; }
};

TEST_F(JoiningTest, IsCompleteHereWithAllRanksAndLinksOnce) {
  Joining joins = joining();
  Peers peers(members);
  peers.link_up(1, {}, 1);
  members.local[0].port = &port;
  EXPECT_FALSE(joins.complete_here(peers));
  EXPECT_EQ(joins.missing(peers), " rank 1, machine 1 with rank 2");
  members.local[1].port = &port;
  EXPECT_TRUE(joins.complete_here(peers));
  peers.link_down(1);
  EXPECT_FALSE(joins.complete_here(peers));
  peers.link_up(1, {}, 2);
  joins.say_joined();
  EXPECT_FALSE(joins.complete_here(peers)) << "it was said";
}

TEST_F(JoiningTest, OfAMachineThatHasEverythingMissesTheCoordinatorsWord) {
  members.machine = 1;
  members.local = {{.rank = 2, .session = {}, .port = &port}};
  Peers peers(members);
  peers.link_up(0, {}, 1);
  EXPECT_EQ(joining().missing(peers), " the word of the coordinator, machine 0 with ranks 0, 1");
}

TEST_F(JoiningTest, ComparesWhatALaterRankSays) {
  const Joining joins = joining();
  EXPECT_TRUE(joins.compare(first).ok());
  std::vector<wire::CreateCommunicator> others(6, first);
  others[0].first_step = 7;
  others[1].meeting = 3;
  others[2].job_key[0] = std::byte{2};
  others[3].members.pop_back();
  others[4].members[2].instance = {9, 9};
  others[5].members[2].device[0] = std::byte{1};
  for (const wire::CreateCommunicator& other : others) {
    EXPECT_EQ(joins.compare(other).code(), StatusCode::kMISMATCH);
  }
  EXPECT_NE(joins.compare(others[0]).message().find("first step 7 against 6"), std::string::npos);
  EXPECT_TRUE(joins.same_meeting(others[0]));
  EXPECT_FALSE(joins.same_meeting(others[1]));
  EXPECT_FALSE(joins.same_meeting(others[2]));
}

TEST_F(JoiningTest, TakesMachinesThatSeeTheSameRanks) {
  Joining coordinator = joining();
  const Joining member = joining();
  EXPECT_FALSE(coordinator.all_joined());
  coordinator.say_joined();
  ASSERT_TRUE(coordinator.take(1, member.message({})).ok());
  EXPECT_TRUE(coordinator.all_joined());
  Join other = member.message({});
  other.first_step = 5;
  EXPECT_NE(coordinator.take(1, other).message().find("machine 1 with rank 2 and machine 0"),
            std::string::npos);
  std::swap(members.instances[0], members.instances[1]);
  const Join swapped = Joining(members, first).message({});
  std::swap(members.instances[0], members.instances[1]);
  EXPECT_EQ(coordinator.take(1, swapped).code(), StatusCode::kMISMATCH);
}

TEST_F(JoiningTest, KeepsResidualsWhereAllHaveTheSameStepOfTheSameLife) {
  const ResidualMark kept{41, 7};
  for (const ResidualMark& theirs : {kept, ResidualMark{40, 7}, ResidualMark{41, 8}, {}}) {
    Joining joins = joining();
    ASSERT_TRUE(joins.take(1, joins.message(theirs)).ok());
    EXPECT_EQ(joins.all_keep(kept), theirs == kept) << theirs.step_end;
    EXPECT_FALSE(joins.all_keep({})) << "nobody has any";
  }
}

TEST_F(JoiningTest, SayWhoHasNotKeptResiduals) {
  const auto said = [&](const ResidualMark& own, const ResidualMark& theirs) {
    Joining joins = joining();
    EXPECT_TRUE(joins.take(1, joins.message(theirs)).ok());
    return joins.feedback_begins(own);
  };
  EXPECT_EQ(said({}, {}), "");
  EXPECT_EQ(said({41, 7}, {41, 7}), "error feedback goes on from step 40");
  const std::string lost = "error feedback begins at zero: that of step 40 was not kept by ";
  EXPECT_EQ(said({41, 7}, {}), lost + members.machine_name(1));
  EXPECT_EQ(said({}, {41, 7}), lost + members.machine_name(0));
  EXPECT_EQ(said({41, 7}, {40, 7}), lost + members.machine_name(1));
}

}  // namespace
}  // namespace cgx::scheduler
