#include "scheduler/prepared_plan.h"

#include <algorithm>

#include "scheduler/residuals.h"

namespace cgx::scheduler {

SlabCounts slabs_for(uint32_t operations, uint32_t machines, uint64_t scatter_chunks,
                     uint64_t gather_chunks) {
  if (machines == 1) return {};
  const uint32_t parts = scatter_parts(machines), window = gather_parts(machines);
  const uint32_t windows = machines == 2 ? 1 : 2;
  const auto ahead = static_cast<uint32_t>(
      std::max(std::min<uint64_t>(scatter_chunks, parts),
               std::min<uint64_t>(gather_chunks, uint64_t{windows} * window)));
  // Own parts that wait for peers' must leave room for those of an operation that starts late.
  const auto kept = static_cast<uint32_t>(operations * std::min<uint64_t>(gather_chunks, window));
  const uint32_t sending = 2 * (machines - 1) * parts + parts;
  return {.received = 2 * operations * (machines - 1) * ahead,  // peers are up to 2W operations on
          .own = kept + sending};
}

Result<std::shared_ptr<const PreparedPlan>> PreparedPlan::create(Inputs inputs) {
  CGX_RETURN_IF_ERROR(check_plan(inputs.plan, *inputs.table));
  const auto facts = std::make_shared<PlanFacts>();
  const TensorTable& table = *inputs.table;
  facts->plan = std::move(inputs.plan);
  facts->policy = std::move(inputs.policy);
  facts->table = inputs.table;
  facts->hash = facts->plan.hash();
  facts->group_of.resize(table.size());
  facts->segment_of.resize(table.size());
  for (const TensorDesc& tensor : table) facts->name_hashes.push_back(tensor.name_hash());

  PartLimits limits;
  limits.encoded_bytes = std::min(limits.encoded_bytes, inputs.pool->slab_bytes() * 3 / 4);
  uint64_t scatter_chunks = 0, gather_chunks = 0;
  for (uint32_t g = 0; g < facts->plan.groups.size(); ++g) {
    const Group& group = facts->plan.groups[g];
    for (uint32_t s = 0; s < group.segments.size(); ++s) {
      facts->group_of[group.segments[s].tensor] = g;
      facts->segment_of[group.segments[s].tensor] = s;
    }
    const GroupLayout& layout = facts->layouts.emplace_back(
        GroupLayout::choose(facts->plan.collective, group, table, inputs.machines, limits));
    if (layout.part_bytes_max() > inputs.pool->slab_bytes()) {
      return resource_exhausted(
          "group " + std::to_string(g) + " of " + std::to_string(group.segments.size()) +
          " tensors needs frames of " + std::to_string(layout.part_bytes_max()) +
          " bytes, the limit is " + std::to_string(inputs.pool->slab_bytes()));
    }
    const bool gathers = layout.collective() == Collective::kAllgather;
    uint64_t& most = gathers ? gather_chunks : scatter_chunks;
    most = std::max<uint64_t>(most, layout.chunks(inputs.machine));
  }
  const SlabCounts slabs =
      slabs_for(facts->plan.window, inputs.machines, scatter_chunks, gather_chunks);
  const uint64_t residuals = Residuals::bytes_needed(facts->plan, table);
  const uint64_t bytes = slabs.sum() * inputs.pool->slab_bytes() + residuals;
  if (bytes > inputs.bytes_free) {
    return resource_exhausted(
        "the plan needs " + std::to_string(bytes) + " bytes (" + std::to_string(residuals) +
        " of residuals, " + std::to_string(slabs.sum()) +
        " frame buffers), limits.plan_bytes leaves " + std::to_string(inputs.bytes_free));
  }
  CGX_RETURN_IF_ERROR(inputs.pool->reserve(slabs));
  auto prepared = std::make_shared<PreparedPlan>(facts);
  prepared->pool_ = inputs.pool;
  prepared->slabs_ = slabs;
  prepared->reserved_bytes = bytes;
  return std::shared_ptr<const PreparedPlan>(std::move(prepared));
}

}  // namespace cgx::scheduler
