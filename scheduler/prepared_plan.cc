#include "scheduler/prepared_plan.h"

namespace cgx::scheduler {

Result<std::shared_ptr<const PreparedPlan>> PreparedPlan::create(FactsPtr facts, BufferPool& pool,
                                                                 uint64_t bytes_free) {
  const SlabCounts& slabs = facts->slabs;
  const uint64_t bytes = slabs.sum() * pool.slab_bytes() + facts->residual_bytes;
  if (bytes > bytes_free) {
    return resource_exhausted(
        "the plan needs " + std::to_string(bytes) + " bytes (" +
        std::to_string(facts->residual_bytes) + " of residuals, " + std::to_string(slabs.sum()) +
        " frame buffers), limits.plan_bytes leaves " + std::to_string(bytes_free));
  }
  CGX_RETURN_IF_ERROR(pool.reserve(slabs));
  auto prepared = std::make_shared<PreparedPlan>(std::move(facts));
  prepared->pool_ = &pool;
  prepared->reserved_bytes = bytes;
  return std::shared_ptr<const PreparedPlan>(std::move(prepared));
}

}  // namespace cgx::scheduler
