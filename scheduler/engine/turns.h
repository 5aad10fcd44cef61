// Whose turn it is among several that want the data thread: whose next turn, as long as its turns
// usually are, would end first if everybody had the thread's time by weight. So a small job need
// not wait for a part of each large one. Who was idle has saved nothing up. What one holder has
// share a weight, their mean one: nobody gets more by having many.
//
// Weighted fair queueing: an account's tag is when its next turn begins in virtual time. Thread
// rule: the engine's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace cgx::scheduler {

constexpr uint64_t kTurnNs = 100'000;  // when others want the thread, nobody begins more after that

class Turns {
 public:
  using Crowd = std::shared_ptr<uint32_t>;  // how many of a holder's have something to do
  struct Account {
    uint64_t tag = 0;
    uint64_t usual = 0;     // in virtual time: of its turns lately
    Crowd crowd = nullptr;  // null: it is the only one
    bool busy = false;      // counted there
  };

  // The smallest goes first.
  static uint64_t end(const Account& account) { return account.tag + account.usual; }
  // It has had a turn.
  void take(Account& account, uint64_t ns, uint32_t weight) {
    now_ = std::max(now_, account.tag);
    set_busy(account, true);
    const uint64_t took = virtual_time(account, ns, weight);
    account.usual = account.usual == 0 ? took : (3 * account.usual + took) / 4;
    account.tag += took;
  }
  // It could have had a turn, and had nothing to do.
  void pass(Account& account) const {
    account.tag = std::max(account.tag, now_);
    set_busy(account, false);
  }
  // It has used time outside its turn: frames are taken as they come.
  static void charge(Account& account, uint64_t ns, uint32_t weight) {
    account.tag += virtual_time(account, ns, weight);
  }
  static void leave(Account& account) { set_busy(account, false); }

 private:
  static void set_busy(Account& account, bool busy) {
    const bool changed = std::exchange(account.busy, busy) != busy;
    if (changed && account.crowd != nullptr) *account.crowd += busy ? 1 : -1;
  }
  static uint64_t virtual_time(const Account& account, uint64_t ns, uint32_t weight) {
    // So fine that 100 ns count at the highest weight, so coarse that tags wrap after nine years.
    constexpr uint64_t kFineness = 64;
    const uint64_t sharing = account.crowd == nullptr ? 1 : std::max<uint32_t>(1, *account.crowd);
    return ns * kFineness * sharing / std::max<uint32_t>(1, weight);
  }
  uint64_t now_ = 0;  // where the last turn began
};

}  // namespace cgx::scheduler
