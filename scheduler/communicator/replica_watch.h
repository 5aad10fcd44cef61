// Coordinator: compares what machines decoded. Every machine hashes the same piece of one result
// now and then; two hashes that differ end the communicator by name.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/communicator/control.h"

namespace cgx::scheduler {

class ReplicaWatch {
 public:
  struct Difference {
    uint32_t machine = 0, other = 0;
    std::string lane, other_lane;
  };
  struct Comparison {
    uint32_t compared = 0;  // with so many machines' hashes
    std::optional<Difference> difference;
  };
  // What a machine says of its result; compared with what others have said of the same one.
  Comparison compare(uint32_t machine, const ReplicaHash& hash);
  void forget() { newest_.clear(); }  // a pass that is made again need not give the same gradients

 private:
  std::vector<std::optional<ReplicaHash>> newest_;  // by machine
};

}  // namespace cgx::scheduler
