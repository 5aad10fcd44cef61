#include "scheduler/planners/merge.h"

#include <algorithm>
#include <array>
#include <optional>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kLeastBytes = 4096, kMostBytes = 1 << 30;
constexpr std::array<size_t, 3> kStrides = {4, 2, 1};  // powers of two apart

using Groups = std::vector<Group>;

std::string size_text(uint64_t bytes) {
  if (bytes >= 1 << 20) return std::to_string(bytes >> 20) + " MiB";
  return std::to_string(bytes >> 10) + " KiB";
}

struct Cut {
  uint64_t bytes = 0;
  Groups groups;
};

// One plan for each size, those that are equal once.
Result<std::vector<Cut>> all_cuts(const PlanInputs& inputs) {
  std::vector<Cut> cuts;
  for (uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    Policy policy = inputs.policy;
    policy.group_bytes = bytes;
    PlanInputs asked{inputs.table,     policy,           inputs.policy_version, inputs.epoch,
                     inputs.order,     inputs.machines,  inputs.slab_bytes,     inputs.ceilings,
                     inputs.decisions, inputs.sites_each};
    CGX_ASSIGN_OR_RETURN(Plan plan, make_plan(asked));
    if (!cuts.empty() && cuts.back().groups == plan.groups) continue;
    cuts.push_back({bytes, std::move(plan.groups)});
  }
  return cuts;
}

// The one that runs, or which has about as many groups.
size_t place_of(const std::vector<Cut>& cuts, const Groups& running) {
  const auto off = [&](const Cut& cut) {
    const auto more =
        static_cast<int64_t>(cut.groups.size()) - static_cast<int64_t>(running.size());
    return cut.groups == running ? -1 : std::abs(more);
  };
  const auto nearest = std::min_element(
      cuts.begin(), cuts.end(), [&](const Cut& a, const Cut& b) { return off(a) < off(b); });
  return static_cast<size_t>(nearest - cuts.begin());
}

// Half of the last group, by bytes, as one of its own.
std::optional<Groups> last_halved(const PlanInputs& inputs, const Groups& running) {
  Groups groups = running;
  Group& last = groups.back();
  uint64_t all = 0, ahead = 0;
  for (const Segment& segment : last.segments) all += segment_bytes(segment, inputs.table);
  size_t keep = 0;
  while (keep < last.segments.size() && 2 * ahead < all) {
    ahead += segment_bytes(last.segments[keep++], inputs.table);
  }
  if (keep == 0 || keep >= last.segments.size()) return {};
  const auto middle = last.segments.begin() + static_cast<std::ptrdiff_t>(keep);
  Group tail{.segments = {middle, last.segments.end()}, .way = last.way};
  last.segments.erase(middle, last.segments.end());
  groups.push_back(std::move(tail));
  return groups;
}

}  // namespace

Result<std::vector<MergeCandidate>> merge_candidates(const PlanInputs& inputs,
                                                     const std::vector<Group>& running,
                                                     std::span<const std::vector<Group>> lost) {
  CGX_ASSIGN_OR_RETURN(const std::vector<Cut> cuts, all_cuts(inputs));
  const size_t place = place_of(cuts, running);
  std::vector<MergeCandidate> candidates;
  const auto add = [&](std::string name, const Groups& groups) {
    const bool tried = std::find(lost.begin(), lost.end(), groups) != lost.end();
    if (!tried && groups != running) candidates.push_back({std::move(name), groups});
  };
  const auto add_cut = [&](const Cut& cut) {
    add("groups of " + size_text(cut.bytes), cut.groups);
  };
  for (const size_t stride : kStrides) {
    // Far off all sizes, not only the next: small groups may be best where large ones beat those
    // between, as one hides what it encodes behind the backward pass and the other wakes nobody.
    const size_t most = stride == kStrides.front() ? cuts.size() : stride;
    for (size_t off = stride; off <= most; off += stride) {
      if (place + off < cuts.size()) add_cut(cuts[place + off]);
      if (place >= off) add_cut(cuts[place - off]);
    }
    if (!candidates.empty()) return candidates;
  }
  if (running.empty()) return candidates;
  const std::optional<Groups> halved = last_halved(inputs, running);
  if (halved) add("half of the last group apart", *halved);
  return candidates;
}

}  // namespace cgx::scheduler
