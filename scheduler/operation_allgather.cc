// Operation, allgather: the own contribution, encoded once, to everybody; everybody's, the own one
// included, into the local results.
#include "scheduler/operation.h"

namespace cgx::scheduler {

// Encodes the next own chunk, to be kept and sent to all. False: the window is full, or no slab is
// free.
Result<bool> Operation::send_gather() {
  if (next_own_ == own_.size() || next_own_ - lowest_ >= setup_.layout->inflight_parts())
    return false;
  const SlabId slab = pool_.take_for_own();
  if (slab == kNoSlab) return false;
  --sends_left_;
  const uint32_t chunk = next_own_++;
  CGX_RETURN_IF_ERROR(ask_encode(setup_.machine, chunk, Slab(pool_, slab)));
  return true;
}

// REQUIRES: every machine's part is there.
Result<bool> Operation::combine_chunk(uint32_t chunk, const Live& live) {
  CGX_RETURN_IF_ERROR(learn_union().status());
  CGX_RETURN_IF_ERROR(ask(
      {.shard = setup_.machine, .chunk = chunk},
      {.kind = SiteJobKind::kCombine, .presence = &union_, .from = contributions(chunk, live)}));
  return true;
}

}  // namespace cgx::scheduler
