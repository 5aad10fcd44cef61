// Sends whose outcome is known and that nobody was told of yet: on_sent is called from progress()
// only. Thread rule: as its transport.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace cgx::transport {

class Completions {
 public:
  void add(PeerId peer, SendToken token, Status status) {
    waiting_.push_back({peer, token, std::move(status)});
  }
  bool empty() const { return waiting_.empty(); }
  bool has(PeerId peer) const {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [&](const Completion& one) { return one.peer == peer; });
  }

  // How many were told. What a callback adds waits for the next call.
  int report(Events& events) {
    if (waiting_.empty()) return 0;
    std::swap(waiting_, reporting_);
    for (const Completion& done : reporting_) events.on_sent(done.peer, done.token, done.status);
    const int count = static_cast<int>(reporting_.size());
    reporting_.clear();
    return count;
  }

 private:
  struct Completion {
    PeerId peer;
    SendToken token = kNoToken;
    Status status;
  };
  std::vector<Completion> waiting_, reporting_;
};

}  // namespace cgx::transport
