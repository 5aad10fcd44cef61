// Engine, the time of its thread: who works next, and for how long.
#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {

// One communicator needs no clock.
uint64_t Engine::State::turn_clock_ns() const {
  return communicators_.size() > 1 && ports_.clock != nullptr ? ports_.clock->now_ns() : now_ns_;
}

Turns::Account& Engine::State::account_of(const Communicator& communicator) {
  const size_t index = communicator.index();
  if (index >= accounts_.size()) accounts_.resize(index + 1);
  return accounts_[index];
}

void Engine::State::charge(const Communicator& communicator, uint64_t since_ns) {
  if (communicators_.size() < 2) return;
  turns_.charge(account_of(communicator), turn_clock_ns() - since_ns, communicator.weight());
}

// Those who are next in turn, then those who have had more than their share, least first.
void Engine::State::line_up() {
  line_.clear();
  ahead_.clear();
  const size_t count = communicators_.size();
  for (size_t i = 0; i < count; ++i) {
    Communicator* const communicator = communicators_[(turn_ + i) % count].get();
    (turns_.is_next(account_of(*communicator)) ? line_ : ahead_).push_back(communicator);
  }
  std::sort(ahead_.begin(), ahead_.end(), [this](const Communicator* a, const Communicator* b) {
    return account_of(*a).tag < account_of(*b).tag;
  });
  line_.insert(line_.end(), ahead_.begin(), ahead_.end());
}

// About a part each; where that has taken long, the others' come in the next round, after what has
// arrived meanwhile.
int Engine::State::take_turns() {
  if (communicators_.size() == 1) return communicators_.front()->work();
  line_up();
  int worked = 0;
  const uint64_t began_ns = turn_clock_ns();
  uint64_t now_ns = began_ns;
  for (Communicator* const communicator : line_) {
    if (now_ns - began_ns >= kTurnNs) break;
    if (!communicator->work()) continue;
    ++worked;
    const uint64_t before_ns = std::exchange(now_ns, turn_clock_ns());
    turns_.take(account_of(*communicator), now_ns - before_ns, communicator->weight());
  }
  return worked;
}

}  // namespace cgx::scheduler
