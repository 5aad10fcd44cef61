#include "scheduler/communicator/policy_desk.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

Policy with_window(uint32_t window) {
  Policy policy;
  policy.window = window;
  return policy;
}

// Counts what it is told.
struct Asker {
  uint32_t told = 0;
  StatusCode code = StatusCode::kOK;
  PolicyAnswer answer() {
    return [this](const Result<PolicyChange>& change) {
      ++told;
      code = change.status().code();
    };
  }
};

TEST(PolicyDesk, BeginsWithTheConfiguredPolicyAsVersionOne) {
  PolicyDesk desk(with_window(3));
  EXPECT_EQ(desk.policy().window, 3u);
  EXPECT_EQ(desk.version(), 1u);
  EXPECT_TRUE(desk.history().empty());
  desk.configure(
      with_window(5));  // the coordinator's counts; plans still say which one is in force
  EXPECT_EQ(desk.configured().window, 5u);
  EXPECT_EQ(desk.policy().window, 3u);
}

TEST(PolicyDesk, AWishTakesThePlaceOfTheOneBefore) {
  PolicyDesk desk({});
  Asker first, second;
  EXPECT_EQ(desk.wish(), nullptr);
  desk.want({with_window(6), first.answer(), {}});
  desk.want({with_window(7), second.answer(), {}});
  ASSERT_NE(desk.wish(), nullptr);
  EXPECT_EQ(desk.wish()->policy.window, 7u);
  EXPECT_EQ(desk.policy().window, Policy().window) << "not agreed";
  EXPECT_EQ(desk.take_wish()->policy.window, 7u);
  EXPECT_FALSE(desk.take_wish().has_value());
}

TEST(PolicyDesk, AnAnswerIsTakenOnce) {
  PolicyDesk desk({});
  Asker asker, other;
  const uint64_t ticket = desk.expect(asker.answer(), 100),
                 another = desk.expect(other.answer(), 100);
  EXPECT_NE(ticket, another);
  desk.take(ticket)(PolicyChange{});
  EXPECT_EQ(asker.told, 1u);
  EXPECT_EQ(other.told, 0u);
  EXPECT_FALSE(desk.take(ticket)) << "it comes again";
  EXPECT_FALSE(desk.take(99)) << "nobody asked";
}

TEST(PolicyDesk, WhoWaitsTooLongIsHandedBack) {
  PolicyDesk desk({});
  Asker early, late;
  desk.expect(early.answer(), 100);
  const uint64_t ticket = desk.expect(late.answer(), 200);
  EXPECT_TRUE(desk.take_late(99).empty());
  ASSERT_EQ(desk.take_late(100).size(), 1u);
  EXPECT_TRUE(desk.take_late(199).empty());
  EXPECT_TRUE(desk.take(ticket)) << "still in time";
}

TEST(PolicyDesk, InTheEndEverybodyIsHandedBack) {
  PolicyDesk desk({});
  Asker member, coordinator;
  desk.expect(member.answer(), UINT64_MAX);
  desk.want({with_window(6), coordinator.answer(), {}});
  for (const PolicyAnswer& answer : desk.take_all()) answer(Status(StatusCode::kCANCELLED, "gone"));
  EXPECT_EQ(member.told, 1u);
  EXPECT_EQ(coordinator.told, 1u);
  EXPECT_EQ(coordinator.code, StatusCode::kCANCELLED);
  EXPECT_TRUE(desk.take_all().empty());
}

TEST(PolicyDesk, KeepsWhatWasInForce) {
  PolicyDesk desk(with_window(3));
  EXPECT_TRUE(desk.took_force({2, 1, 0, with_window(4)})) << "a policy kept for the name";
  ASSERT_EQ(desk.history().size(), 2u);
  EXPECT_EQ(desk.history()[0]->policy.window, 3u) << "never in force, but where it began";
  EXPECT_EQ(desk.history()[0]->epoch, 0u);
  EXPECT_FALSE(desk.took_force({2, 3, 9, with_window(4)})) << "another plan under it";
  for (uint64_t version = 3; version < 40; ++version) {
    EXPECT_TRUE(desk.took_force({version, version, version, with_window(4)}));
  }
  ASSERT_EQ(desk.history().size(), 17u);
  EXPECT_EQ(desk.history().front()->version, 1u) << "what a rollback to the configuration needs";
  EXPECT_EQ(desk.history()[1]->version, 24u);
  EXPECT_EQ(desk.history().back()->version, 39u);
}

}  // namespace
}  // namespace cgx::scheduler
