// What ranks have registered, made into tables and compared. Pure: it may run on any thread, since
// 65,536 tensors take longer than the one that moves gradients has.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/session_messages.h"
#include "scheduler/communicator/members.h"
#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

// What a rank has registered, in the pieces in which it came; a piece never changes.
class Registration {
 public:
  static uint64_t bytes_of(const std::vector<wire::TensorDescription>& tensors);

  void add(std::vector<wire::TensorDescription> tensors) {
    size_ += tensors.size();
    bytes_ += bytes_of(tensors);
    pieces_.push_back(
        std::make_shared<const std::vector<wire::TensorDescription>>(std::move(tensors)));
  }
  size_t size() const { return size_; }
  uint64_t bytes() const { return bytes_; }  // of memory
  template <class Act>
  void for_each(Act act) const {
    for (const auto& piece : pieces_) {
      for (const wire::TensorDescription& tensor : *piece) act(tensor);
    }
  }

 private:
  std::vector<std::shared_ptr<const std::vector<wire::TensorDescription>>> pieces_;
  size_t size_ = 0;
  uint64_t bytes_ = 0;
};

struct RegisteredBy {
  uint32_t rank = 0;
  Registration tensors;
  std::vector<uint64_t> arena_bytes;  // of its arenas, as far as the site reaches them
};

struct CommitTable {
  std::shared_ptr<const TensorTable> table;
  std::vector<std::byte> encoded;
};

// The one table of all ranks of a machine, or the first difference between two of them.
Result<CommitTable> make_table(std::span<const RegisteredBy> ranks);

using EncodedTable = std::shared_ptr<const std::vector<std::byte>>;  // machines may share one

// Of all machines; `ours` is machine 0's. An error: the first difference.
Status compare_tables(const Members& members, const TensorTable& ours,
                      std::span<const EncodedTable> tables);

}  // namespace cgx::scheduler
