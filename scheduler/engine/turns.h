// Whose turn it is among several that want the data thread: who has had least of its time, by
// weight. Who was idle comes first, but saves nothing up.
//
// Start-time fair queueing: an account's tag is when its next turn begins in virtual time, which
// goes on with every turn to the tag of who has it. Thread rule: the engine's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cgx::scheduler {

constexpr uint64_t kTurnNs = 100'000;  // when others want the thread, nobody begins more after that

class Turns {
 public:
  struct Account {
    uint64_t tag = 0;
  };

  // Nobody who wants the thread comes before it.
  bool is_next(const Account& account) const { return account.tag <= now_; }
  // It has had a turn.
  void take(Account& account, uint64_t ns, uint32_t weight) {
    now_ = std::max(account.tag, now_);
    charge(account, ns, weight);
  }
  // It has used time outside its turn: frames are taken as they come.
  void charge(Account& account, uint64_t ns, uint32_t weight) const {
    account.tag = std::max(account.tag, now_) + ns * kFineness / std::max<uint32_t>(1, weight);
  }

 private:
  static constexpr uint64_t kFineness = 1024;
  uint64_t now_ = 0;
};

}  // namespace cgx::scheduler
