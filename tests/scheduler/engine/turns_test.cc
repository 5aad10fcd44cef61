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

TEST(TurnsTest, LetWhoeverWasIdleGoFirstAndSaveNothingUp) {
  Turns turns;
  Turns::Account busy, idle;
  for (int i = 0; i < 100; ++i) turns.take(busy, 100'000, 1);
  EXPECT_TRUE(turns.is_next(idle));
  EXPECT_FALSE(turns.is_next(busy));
  turns.take(idle, 200'000, 1);
  turns.take(busy, 1, 1);  // the other's time has come
  EXPECT_FALSE(turns.is_next(idle)) << "it has not saved up a hundred turns";
}

TEST(TurnsTest, ChargeWhatIsUsedOutsideATurn) {
  Turns turns;
  Turns::Account account;
  turns.charge(account, 1'000, 1);
  EXPECT_FALSE(turns.is_next(account));
}

}  // namespace
}  // namespace cgx::scheduler
