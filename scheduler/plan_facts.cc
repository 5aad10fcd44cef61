#include "scheduler/plan_facts.h"

#include <algorithm>

#include "proto/wire/frame.h"
#include "scheduler/planner.h"
#include "scheduler/residuals.h"

namespace cgx::scheduler {

SlabCounts slabs_for(const FrameNeeds& needs) {
  const auto [operations, machines, scatter_chunks, gather_chunks, site_consumes] = needs;
  if (machines == 1) return {};
  const uint32_t parts = scatter_parts(machines), window = gather_parts(machines);
  const uint32_t windows = machines == 2 && site_consumes ? 1 : 2;
  const auto ahead = static_cast<uint32_t>(
      std::max(std::min<uint64_t>(scatter_chunks, parts),
               std::min<uint64_t>(gather_chunks, uint64_t{windows} * window)));
  // Own parts that wait for peers' must leave room for those of an operation that starts late.
  const auto kept = static_cast<uint32_t>(operations * std::min<uint64_t>(gather_chunks, window));
  const uint32_t sending = 2 * (machines - 1) * parts + parts;
  const uint32_t results = site_consumes ? 0 : operations * (machines - 1) * parts;
  // Peers are up to 2W operations on.
  return {.received = 2 * operations * (machines - 1) * ahead + results, .own = kept + sending};
}

namespace {

Result<Plan> plan_of(const PlanQuestion& question) {
  if (question.encoded_plan.empty()) {
    return make_plan({*question.table, question.policy, question.policy_version, question.epoch,
                      question.order});
  }
  CGX_ASSIGN_OR_RETURN(Plan plan, decode_plan(question.encoded_plan));
  CGX_RETURN_IF_ERROR(check_plan(plan, *question.table));
  return plan;
}

bool lacks(const PlanQuestion& question, uint32_t tensor) {
  return tensor >= question.has_residual.size() || !question.has_residual[tensor];
}

// Not more than there is room for: the plan is refused then, by who knows the limit.
Status make_residuals(const PlanQuestion& question, PlanFacts& facts) {
  if (!question.make_residual || question.dry_run) return {};
  const auto each = [&](const auto& act) {
    for_each_feedback(facts.plan, *question.table, [&](uint32_t tensor, const TensorDesc& what) {
      if (lacks(question, tensor)) act(tensor, what);
    });
  };
  uint64_t bytes = 0;
  each([&](uint32_t, const TensorDesc& what) { bytes += Residuals::bytes_of(what); });
  if (bytes == 0 || bytes > question.bytes_free) return {};
  facts.made = std::make_shared<MadeResiduals>();
  facts.made_bytes = bytes;
  bool made = true;
  each([&](uint32_t tensor, const TensorDesc& what) {
    if (!made) return;
    made = (facts.made->by_tensor[tensor] = question.make_residual(what.elements)) != nullptr;
  });
  if (made) return {};
  return resource_exhausted("this machine has no memory for " + std::to_string(bytes) +
                            " bytes of residuals");
}

}  // namespace

Result<FactsPtr> make_facts(const PlanQuestion& question) {
  const auto facts = std::make_shared<PlanFacts>();
  CGX_ASSIGN_OR_RETURN(facts->plan, plan_of(question));
  const TensorTable& table = *question.table;
  facts->policy = question.policy;
  facts->table = question.table;
  facts->encoded = encode_plan(facts->plan);
  facts->hash = wire::checksum(facts->encoded);
  facts->group_of.resize(table.size());
  facts->segment_of.resize(table.size());
  for (const TensorDesc& tensor : table) facts->name_hashes.push_back(tensor.name_hash());

  PartLimits limits;
  limits.encoded_bytes = std::min(limits.encoded_bytes, question.slab_bytes * 3 / 4);
  uint64_t scatter_chunks = 0, gather_chunks = 0;
  for (uint32_t g = 0; g < facts->plan.groups.size(); ++g) {
    const Group& group = facts->plan.groups[g];
    for (uint32_t s = 0; s < group.segments.size(); ++s) {
      facts->group_of[group.segments[s].tensor] = g;
      facts->segment_of[group.segments[s].tensor] = s;
    }
    const GroupLayout& layout = facts->layouts.emplace_back(
        GroupLayout::choose(facts->plan.collective, group, table, question.machines, limits));
    if (layout.part_bytes_max() > question.slab_bytes) {
      return resource_exhausted(
          "group " + std::to_string(g) + " of " + std::to_string(group.segments.size()) +
          " tensors needs frames of " + std::to_string(layout.part_bytes_max()) +
          " bytes, the limit is " + std::to_string(question.slab_bytes));
    }
    const bool gathers = layout.collective() == Collective::kAllgather;
    uint64_t& most = gathers ? gather_chunks : scatter_chunks;
    most = std::max<uint64_t>(most, layout.chunks(question.machine));
  }
  facts->slabs = slabs_for({.operations = facts->plan.window,
                            .machines = question.machines,
                            .scatter_chunks = scatter_chunks,
                            .gather_chunks = gather_chunks,
                            .site_consumes = question.site_consumes});
  facts->residual_bytes = Residuals::bytes_needed(facts->plan, table);
  CGX_RETURN_IF_ERROR(make_residuals(question, *facts));
  return FactsPtr(facts);
}

}  // namespace cgx::scheduler
