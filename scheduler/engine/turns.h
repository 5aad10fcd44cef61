// Whose turn it is among several that want the data thread: whose next turn, as long as its turns
// usually are, would end first if everybody had the thread's time by weight. So a small job need
// not wait for a part of each large one. Who was idle has saved nothing up.
//
// Weighted fair queueing: an account's tag is when its next turn begins in virtual time. Thread
// rule: the engine's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::scheduler {

constexpr uint64_t kTurnNs = 100'000;  // when others want the thread, nobody begins more after that

class Turns {
 public:
  struct Account {
    uint64_t tag = 0;
    uint64_t usual = 0;  // in virtual time: of its turns lately
  };

  // The smallest goes first.
  static uint64_t end(const Account& account) { return account.tag + account.usual; }
  // It has had a turn.
  void take(Account& account, uint64_t ns, uint32_t weight) {
    now_ = std::max(now_, account.tag);
    const uint64_t took = virtual_time(ns, weight);
    account.usual = account.usual == 0 ? took : (3 * account.usual + took) / 4;
    account.tag += took;
  }
  // It could have had a turn, and had nothing to do.
  void pass(Account& account) const { account.tag = std::max(account.tag, now_); }
  // It has used time outside its turn: frames are taken as they come.
  static void charge(Account& account, uint64_t ns, uint32_t weight) {
    account.tag += virtual_time(ns, weight);
  }

 private:
  static uint64_t virtual_time(uint64_t ns, uint32_t weight) {
    constexpr uint64_t kFineness = 1024;
    return ns * kFineness / std::max<uint32_t>(1, weight);
  }
  uint64_t now_ = 0;  // where the last turn began
};

}  // namespace cgx::scheduler
