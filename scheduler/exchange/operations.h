// The operations of a runner: those under way, oldest first, and those that ended badly, which stay
// until their site has answered everything. Some that completed lend their memory to the next of
// their group. What is taken out or ended is destroyed by sweep() or by whoever took it, or begun
// again in its place, never while one of its own calls is running.
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

  // In the memory of an earlier one of that group, if there is one: nothing is allocated then.
  Operation& begin(OperationSetup setup, Site& site, BufferPool& pool, OperationPort& port,
                   uint64_t now_ns) {
    const auto found = retired(setup.group_index);
    Pointer memory;
    if (found != retired_.end()) {
      memory = std::move(*found);
      retired_.erase(found);
    }
    return *open_.emplace_back(
        Operation::begin_in(std::move(memory), std::move(setup), site, pool, port, now_ns));
  }
  // For the setup of the next one of that group.
  std::vector<LocalSegment> spare_segments(uint32_t group) {
    const auto found = retired(group);
    return found == retired_.end() ? std::vector<LocalSegment>() : (*found)->take_segments();
  }
  // What take_complete() gave.
  void retire(Pointer operation) {
    if (retired_.size() == kRetiredMax) return;
    operation->retire();
    retired_.push_back(std::move(operation));
  }
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
  std::vector<Pointer>::iterator retired(uint32_t group) {
    return std::find_if(retired_.begin(), retired_.end(), [group](const Pointer& operation) {
      return operation->group_index() == group;
    });
  }

  static constexpr size_t kRetiredMax = 16;

  std::vector<Pointer> open_, ended_, retired_;
};

}  // namespace cgx::scheduler
