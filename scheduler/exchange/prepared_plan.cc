#include "scheduler/exchange/prepared_plan.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {

Result<std::shared_ptr<const PreparedPlan>> PreparedPlan::create(FactsPtr facts, BufferPool& pool,
                                                                 uint64_t missing_bytes,
                                                                 uint64_t bytes_free) {
  // Room that came later is too late: what was not made with the plan is not made.
  if (facts->made != nullptr && facts->made->not_made > 0) {
    missing_bytes = std::max(missing_bytes, facts->made->not_made);
    bytes_free = std::min(bytes_free, facts->made->room);
  }
  const SlabCounts& slabs = facts->slabs;
  const uint64_t slab_bytes = slabs.sum() * pool.slab_bytes();
  const uint64_t decoded_bytes = facts->decoded_bytes();
  const uint64_t bytes = slab_bytes + decoded_bytes + missing_bytes;
  if (bytes > bytes_free) {
    const uint64_t existing = facts->residual_bytes - missing_bytes;
    const std::string beside =
        existing == 0 ? "" : " beside " + std::to_string(existing) + " that exist";
    const std::string in_racks =
        decoded_bytes == 0 ? ""
                           : ", " + std::to_string(decoded_bytes) + " to decode what racks add";
    return resource_exhausted("the plan needs " + std::to_string(bytes) + " bytes (" +
                              std::to_string(missing_bytes) + " of residuals" + beside + ", " +
                              std::to_string(slabs.sum()) + " frame buffers" + in_racks +
                              "), limits.plan_bytes leaves " + std::to_string(bytes_free));
  }
  // There was no room when its facts were made, or another plan of them has it.
  MadeMemory* const made = facts->made.get();
  DecodedMemory decoded;
  if (made != nullptr) decoded = std::exchange(made->decoded, DecodedMemory());
  if (decoded.empty()) {
    CGX_ASSIGN_OR_RETURN(decoded, facts->make_decoded());
  }
  const bool takes = !pool.asks() || (made != nullptr && made->frames != nullptr);
  if (takes) CGX_RETURN_IF_ERROR(pool.reserve(slabs));
  if (made != nullptr) made->frames.reset();
  auto prepared = std::make_shared<PreparedPlan>(std::move(facts));
  if (takes) prepared->pool_ = &pool;
  prepared->decoded = std::move(decoded);
  if (made != nullptr) {
    prepared->runs_ = made->runs.lock();
    if (prepared->runs_ == nullptr) prepared->runs_ = std::make_shared<char>();
    made->runs = prepared->runs_;
  }
  prepared->slab_bytes = slab_bytes;
  prepared->missing_bytes = missing_bytes;
  return std::shared_ptr<const PreparedPlan>(std::move(prepared));
}

}  // namespace cgx::scheduler
