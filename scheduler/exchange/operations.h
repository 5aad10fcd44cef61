// The operations of a runner: those under way, oldest first, and those that ended badly, which stay
// until their site has answered everything. What is taken out or ended is destroyed by sweep() or
// by whoever took it, never while one of its own calls is running.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/exchange/operation.h"

namespace cgx::scheduler {

class Operations {
 public:
  using Pointer = std::unique_ptr<Operation>;

  Operation& add(Pointer operation) { return *open_.emplace_back(std::move(operation)); }
  const std::vector<Pointer>& open() const { return open_; }
  template <class Predicate>
  Operation* find(Predicate matches) const {
    for (const Pointer& operation : open_) {
      if (matches(*operation)) return operation.get();
    }
    return nullptr;
  }
  Pointer take_complete() {  // null: none is
    const auto found = std::find_if(open_.begin(), open_.end(), [](const Pointer& operation) {
      return operation->state() == Operation::State::kComplete;
    });
    if (found == open_.end()) return nullptr;
    Pointer operation = std::move(*found);
    open_.erase(found);
    return operation;
  }

  template <class Predicate>
  void end_if(Predicate matches) {
    for (Pointer& operation : open_) {
      if (!matches(*operation)) continue;
      operation->end();
      ended_.push_back(std::move(operation));
    }
    std::erase(open_, nullptr);
  }
  void end_all() {
    end_if([](const Operation&) { return true; });
  }
  void stop_sending() {
    for (const Pointer& operation : open_) operation->stop_sending();
  }
  bool pass_on_to(uint32_t machine) const {
    return std::any_of(open_.begin(), open_.end(), [machine](const Pointer& operation) {
      return operation->passes_on_to(machine);
    });
  }
  void sweep() {
    std::erase_if(ended_, [](const Pointer& operation) { return !operation->tickets_open(); });
  }

  // A site still has what an operation named.
  template <class Predicate>
  bool tickets_open_if(Predicate matches) const {
    const auto open = [&](const Pointer& operation) {
      return operation->tickets_open() && matches(*operation);
    };
    return std::any_of(open_.begin(), open_.end(), open) ||
           std::any_of(ended_.begin(), ended_.end(), open);
  }
  bool tickets_open() const {
    return tickets_open_if([](const Operation&) { return true; });
  }
  // Something can still come of what is here, though nothing new is sent.
  bool settling() const {
    return tickets_open() || std::any_of(open_.begin(), open_.end(), [](const Pointer& operation) {
             return operation->results_ready();
           });
  }

 private:
  std::vector<Pointer> open_, ended_;
};

}  // namespace cgx::scheduler
