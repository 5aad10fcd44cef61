#include "scheduler/exchange/prepared_plan.h"

namespace cgx::scheduler {

Result<std::shared_ptr<const PreparedPlan>> PreparedPlan::create(FactsPtr facts, BufferPool& pool,
                                                                 uint64_t missing_bytes,
                                                                 uint64_t bytes_free) {
  const SlabCounts& slabs = facts->slabs;
  const uint64_t slab_bytes = slabs.sum() * pool.slab_bytes();
  const uint64_t bytes = slab_bytes + missing_bytes;
  if (bytes > bytes_free) {
    const uint64_t existing = facts->residual_bytes - missing_bytes;
    const std::string beside =
        existing == 0 ? "" : " beside " + std::to_string(existing) + " that exist";
    return resource_exhausted(
        "the plan needs " + std::to_string(bytes) + " bytes (" + std::to_string(missing_bytes) +
        " of residuals" + beside + ", " + std::to_string(slabs.sum()) +
        " frame buffers), limits.plan_bytes leaves " + std::to_string(bytes_free));
  }
  CGX_RETURN_IF_ERROR(pool.reserve(slabs));
  auto prepared = std::make_shared<PreparedPlan>(std::move(facts));
  prepared->pool_ = &pool;
  prepared->slab_bytes = slab_bytes;
  prepared->missing_bytes = missing_bytes;
  return std::shared_ptr<const PreparedPlan>(std::move(prepared));
}

}  // namespace cgx::scheduler
