// Engine, the time of its thread: who works next, and for how long.
#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {

// One communicator needs no clock.
uint64_t Engine::State::turn_clock_ns() const {
  return communicators_.size() > 1 && ports_.clock != nullptr ? ports_.clock->now_ns() : now_ns_;
}

// Rounds serve all communicators.
uint64_t Engine::State::busy_ns() const {
  return ports_.clock != nullptr && communicators_.size() == 1 ? ports_.clock->busy_ns() : 0;
}

void Engine::State::share_thread() {
  for (const auto& communicator : communicators_) communicator->forget_busy();
}

Turns::Account& Engine::State::account_of(const Communicator& communicator) {
  const size_t index = communicator.index();
  if (index >= accounts_.size()) accounts_.resize(index + 1);
  return accounts_[index];
}

void Engine::State::open_account(const Communicator& communicator) {
  Turns::Crowd crowd = std::make_shared<uint32_t>(0);
  for (const auto& other : communicators_) {
    const bool same = other->members().holder == communicator.members().holder;
    if (same) crowd = account_of(*other).crowd;
  }
  account_of(communicator) = {.crowd = std::move(crowd)};
}

void Engine::State::charge(const Communicator& communicator, uint64_t since_ns) {
  if (communicators_.size() < 2) return;
  Turns::charge(account_of(communicator), turn_clock_ns() - since_ns, communicator.weight());
}

// Whoever's turn would end first comes first; of those who are alike, another one every round.
void Engine::State::line_up() {
  line_.clear();
  const auto count = static_cast<uint32_t>(communicators_.size());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = (turn_ + i) % count;
    line_.push_back({Turns::end(account_of(*communicators_[index])), i, index});
  }
  std::sort(line_.begin(), line_.end());
}

// About a part each; where that has taken long, the others' come in the next round, after what has
// arrived meanwhile.
int Engine::State::take_turns() {
  if (communicators_.size() == 1) return communicators_.front()->work();
  line_up();
  int worked = 0;
  const uint64_t began_ns = turn_clock_ns();
  uint64_t now_ns = began_ns;
  for (const InLine& next : line_) {
    if (now_ns - began_ns >= kTurnNs) break;
    Communicator& communicator = *communicators_[next.index];
    Turns::Account& account = account_of(communicator);
    if (!communicator.work()) {
      turns_.pass(account);
      continue;
    }
    ++worked;
    const uint64_t before_ns = std::exchange(now_ns, turn_clock_ns());
    turns_.take(account, now_ns - before_ns, communicator.weight());
  }
  return worked;
}

}  // namespace cgx::scheduler
