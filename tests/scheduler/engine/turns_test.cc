#include "scheduler/engine/turns.h"

#include <gtest/gtest.h>

#include <vector>

namespace cgx::scheduler {
namespace {

// Gives `rounds` turns of `ns[i]` each and adds up what everybody gets.
std::vector<uint64_t> take_turns(const std::vector<uint32_t>& weights,
                                 const std::vector<uint64_t>& ns, int rounds) {
  Turns turns;
  std::vector<Turns::Account> accounts(weights.size());
  std::vector<uint64_t> got(weights.size());
  for (int round = 0; round < rounds; ++round) {
    size_t next = 0;
    for (size_t i = 1; i < accounts.size(); ++i) {
      if (accounts[i].tag < accounts[next].tag) next = i;
    }
    turns.take(accounts[next], ns[next], weights[next]);
    got[next] += ns[next];
  }
  return got;
}

TEST(TurnsTest, GiveTimeByWeightWhateverATurnTakes) {
  const auto got = take_turns({1, 4}, {300'000, 50'000}, 10'000);
  EXPECT_NEAR(static_cast<double>(got[1]) / static_cast<double>(got[0]), 4.0, 0.1);
}

TEST(TurnsTest, AreSharedByWhatAHolderHasThatIsBusy) {
  const auto crowd = std::make_shared<uint32_t>(0);
  Turns turns;
  std::vector<Turns::Account> many(3, {.crowd = crowd});
  Turns::Account one{.crowd = std::make_shared<uint32_t>(0)};
  for (Turns::Account& each : many) turns.take(each, 1'000, 1);
  turns.take(one, 1'000, 1);
  EXPECT_EQ(*crowd, 3u);
  uint64_t before = many[0].tag;
  turns.take(many[0], 1'000, 1);
  EXPECT_EQ(many[0].tag - before, 3 * one.tag) << "each has a third";
  turns.pass(many[1]);
  Turns::leave(many[2]);
  turns.pass(many[1]);
  before = many[0].tag;
  turns.take(many[0], 1'000, 1);
  EXPECT_EQ(many[0].tag - before, one.tag) << "nothing else of it wants any";
}

TEST(TurnsTest, LetWhoeverWasIdleGoFirstAndSaveNothingUp) {
  Turns turns;
  Turns::Account busy, idle;
  for (int i = 0; i < 100; ++i) turns.take(busy, 100'000, 1);
  EXPECT_LT(Turns::end(idle), Turns::end(busy));
  turns.pass(idle);
  EXPECT_LT(Turns::end(idle), Turns::end(busy));
  turns.take(idle, 200'000, 1);
  EXPECT_GT(Turns::end(idle), Turns::end(busy)) << "it has not saved up a hundred turns";
}

TEST(TurnsTest, LetShortTurnsGoBeforeALongOneUntilTheyHaveHadAsMuch) {
  Turns turns;
  Turns::Account small, large;
  turns.take(small, 10'000, 1);
  turns.take(large, 100'000, 1);
  uint64_t had = 10'000;
  for (; Turns::end(small) < Turns::end(large); had += 10'000) turns.take(small, 10'000, 1);
  EXPECT_NEAR(static_cast<double>(had), 190'000, 20'000);
  for (int i = 0; i < 1000; ++i) {
    const bool first = Turns::end(small) < Turns::end(large);
    turns.take(first ? small : large, first ? 10'000 : 100'000, 1);
  }
  EXPECT_NEAR(static_cast<double>(small.tag) / static_cast<double>(large.tag), 1, 0.05);
}

TEST(TurnsTest, ChargeWhatIsUsedOutsideATurn) {
  Turns::Account account, other;
  Turns::charge(account, 1'000, 1);
  EXPECT_GT(Turns::end(account), Turns::end(other));
}

}  // namespace
}  // namespace cgx::scheduler
