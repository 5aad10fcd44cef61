#include "scheduler/communicator/replica_watch.h"

#include <algorithm>

namespace cgx::scheduler {

ReplicaWatch::Comparison ReplicaWatch::compare(uint32_t machine, const ReplicaHash& hash) {
  newest_.resize(std::max<size_t>(newest_.size(), machine + 1));
  newest_[machine] = hash;
  Comparison found;
  for (uint32_t k = 0; k < newest_.size() && !found.difference; ++k) {
    const std::optional<ReplicaHash>& other = newest_[k];
    if (k == machine || !other || other->step != hash.step || other->tensor != hash.tensor)
      continue;
    ++found.compared;
    if (other->hash != hash.hash) found.difference = {machine, k, hash.lane, other->lane};
  }
  return found;
}

}  // namespace cgx::scheduler
