// What other machines say of themselves, or do not.
#include "scheduler/communicator/machine_profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kAsked = 1'000, kOver = 2'000'001'000;

Members members_of_machines(uint32_t machines) {
  Members members;
  for (uint32_t k = 0; k < machines; ++k) {
    members.machine_of_rank.push_back(k);
    members.lowest_rank.push_back(k);
    members.instances.push_back({1, k + 1});
    members.addresses.emplace_back();
    members.devices.emplace_back();
  }
  return members;
}

ProfileAnswerMessage says(uint64_t number, float trip_ns) {
  return {.number = number, .profile = wire::encode_profile({.trip_ns = trip_ns})};
}

class MachineProfilesTest : public ::testing::Test {
 protected:
  uint64_t ask() {
    return profiles_.ask(
        {.question = {}, .wanted = {}, .answer = {}, .since_ns = kAsked, .deadline_ns = kOver});
  }
  const Members members_ = members_of_machines(3);
  MachineProfiles profiles_{members_};
};

TEST_F(MachineProfilesTest, ASurveyWaitsForAll) {
  EXPECT_FALSE(profiles_.ready(kOver)) << "nobody has asked";
  const uint64_t number = ask();
  profiles_.hear(1, says(number, 5));
  EXPECT_FALSE(profiles_.ready(kAsked));
  profiles_.hear(2, says(number, 7));
  ASSERT_TRUE(profiles_.ready(kAsked));
  const SurveyQuestion question = profiles_.take().question;
  ASSERT_EQ(question.others.size(), 2u);
  EXPECT_EQ(question.others[1].trip_ns, 7);
  EXPECT_EQ(question.left_out, "");
  EXPECT_FALSE(profiles_.ready(kOver)) << "it was taken";
}

// It runs under another epoch since; others have told of it under the first.
TEST_F(MachineProfilesTest, WhatIsLookedAtLaterIsThePlanThatWasMeasured) {
  SurveyQuestion asked;
  asked.measured.epoch = 5;
  const uint64_t number = profiles_.ask(
      {.question = asked, .wanted = {}, .answer = {}, .since_ns = kAsked, .deadline_ns = kOver});
  for (const uint32_t machine : {1u, 2u}) profiles_.hear(machine, says(number, 5));
  EXPECT_EQ(profiles_.take().question.measured.epoch, 5u);
  SurveyQuestion later;
  later.measured.epoch = 6;
  profiles_.add_to(later);
  EXPECT_EQ(later.measured.epoch, 5u);
  profiles_.stop();
  later.measured.epoch = 6;
  profiles_.add_to(later);
  EXPECT_EQ(later.measured.epoch, 6u);
}

TEST_F(MachineProfilesTest, WhoDoesNotAnswerInTimeIsLeftOut) {
  const uint64_t number = ask();
  profiles_.hear(2, says(number, 7));
  EXPECT_FALSE(profiles_.ready(kOver - 1));
  ASSERT_TRUE(profiles_.ready(kOver));
  const SurveyQuestion question = profiles_.take().question;
  EXPECT_EQ(question.others.size(), 1u);
  EXPECT_EQ(question.left_out, "machine 1 with rank 1: has not answered within 2000 ms");
  profiles_.hear(1, says(number, 5));
  SurveyQuestion later;
  profiles_.add_to(later);
  EXPECT_EQ(later.others.size(), 1u) << "it came too late";
}

TEST_F(MachineProfilesTest, AnswersToAnOlderQuestionAndSecondOnesCountForNothing) {
  const uint64_t older = ask();
  const uint64_t number = ask();
  ASSERT_NE(older, number);
  profiles_.hear(1, says(older, 5));
  profiles_.hear(2, says(number, 7));
  profiles_.hear(2, says(number, 9));
  profiles_.hear(2, {.number = number, .code = StatusCode::kUNIMPLEMENTED, .text = "no"});
  EXPECT_FALSE(profiles_.ready(kAsked));
  profiles_.hear(1, says(number, 6));
  ASSERT_TRUE(profiles_.ready(kAsked));
  const SurveyQuestion question = profiles_.take().question;
  EXPECT_EQ(question.others[0].trip_ns, 6);
  EXPECT_EQ(question.others[1].trip_ns, 7);
}

TEST_F(MachineProfilesTest, SayWhoRefusesMakesNoSenseOrHasGone) {
  const uint64_t number = ask();
  profiles_.hear(1, {.number = number,
                     .code = StatusCode::kUNIMPLEMENTED,
                     .text = std::string(5'000, 'x'),
                     .profile = says(number, 1).profile});
  profiles_.hear(2, {.number = number, .profile = {std::byte{1}}});
  ASSERT_TRUE(profiles_.ready(kAsked));
  const SurveyQuestion question = profiles_.take().question;
  EXPECT_TRUE(question.others.empty());
  EXPECT_THAT(question.left_out, HasSubstr("machine 1 with rank 1: UNIMPLEMENTED: xxx"));
  EXPECT_THAT(question.left_out, HasSubstr("machine 2 with rank 2: PROTOCOL_ERROR: a profile"));
  EXPECT_LT(question.left_out.size(), 600u);
  ask();
  profiles_.miss(1, "has gone");
  profiles_.miss(2, "has gone");
  ASSERT_TRUE(profiles_.ready(kAsked));
  EXPECT_THAT(profiles_.take().question.left_out, HasSubstr("machine 2 with rank 2: has gone"));
}

TEST_F(MachineProfilesTest, NothingIsKeptOnceNobodySearches) {
  profiles_.hear(1, says(ask(), 5));
  profiles_.stop();
  EXPECT_FALSE(profiles_.ready(kOver));
  const uint64_t number = ask();
  for (const uint32_t machine : {1u, 2u}) profiles_.hear(machine, says(number, 5));
  (void)profiles_.take();
  profiles_.stop();
  SurveyQuestion question;
  profiles_.add_to(question);
  EXPECT_TRUE(question.others.empty());
  profiles_.hear(1, says(number, 5));
  profiles_.miss(1, "has gone");
  EXPECT_FALSE(profiles_.ready(kOver));
}

TEST(MachineProfiles, NameAFewOfMany) {
  const Members members = members_of_machines(40);
  MachineProfiles profiles{members};
  profiles.ask(
      {.question = {}, .wanted = {}, .answer = {}, .since_ns = kAsked, .deadline_ns = kOver});
  ASSERT_TRUE(profiles.ready(kOver));
  const std::string text = profiles.take().question.left_out;
  EXPECT_THAT(text, HasSubstr("machine 4 with"));
  EXPECT_THAT(text, HasSubstr("; and 35 more"));
}

}  // namespace
}  // namespace cgx::scheduler
