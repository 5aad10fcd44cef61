#include "scheduler/exchange/plan_facts.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "scheduler/plan/way.h"

namespace cgx::scheduler {

SlabCounts slabs_for(const FrameNeeds& each, uint32_t operations, uint32_t machines) {
  if (machines == 1) return {};
  const uint32_t parts = scatter_parts(machines);
  const uint32_t few = 2 * (machines - 1) * parts + parts;  // of several operations with one part
  // Own parts that wait for peers' must leave room for those of an operation that starts late.
  const uint32_t forwarded = each.forwarded == 0 ? 0 : std::max(operations * each.forwarded, few);
  return {.received = operations * (2 * each.received + each.results) + forwarded,
          .own = operations * each.kept + std::max(operations * each.unheard, few)};
}

uint64_t rack_decoded_bytes(const Group& group, const GroupLayout& layout) {
  uint64_t most = 0;
  for (uint32_t part = 0; part < layout.parts(); ++part) {
    uint64_t each = 0;  // of the rack's other machines
    for (const Slice& slice : layout.slices(layout.part(part))) {
      const std::optional<CodecSpec>& spec = group.segments[slice.segment].rack_spec;
      if (spec && spec->codec != 0) each += align_range(slice.elements * sizeof(float));
    }
    if (each > 0) most = std::max(most, (group.way.rack_machines - 1) * each);
  }
  return most;
}

Renumbering renumber(std::shared_ptr<const TensorTable> before, const TensorTable& table) {
  std::unordered_map<std::string_view, uint32_t> numbers;
  numbers.reserve(before->size());
  for (uint32_t tensor = 0; tensor < before->size(); ++tensor) {
    numbers.emplace((*before)[tensor].name, tensor);
  }
  Renumbering made{std::move(before), std::vector<uint32_t>(table.size(), Renumbering::kNone)};
  for (uint32_t tensor = 0; tensor < table.size(); ++tensor) {
    const auto found = numbers.find(table[tensor].name);
    if (found != numbers.end()) made.of[tensor] = found->second;
  }
  return made;
}

}  // namespace cgx::scheduler
