// What planners that look for the shortest step are asked, and what they answer. Values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/planners/planner.h"
#include "scheduler/planners/timeline.h"

namespace cgx::scheduler {

// fp32, maxmin:8, maxmin:4 stochastic.
std::vector<CodecSpec> default_menu();
std::vector<CodecSpec> menu_of(const Policy& policy);  // its own, or the default one
// What tensors may take whose codec the policy's default decides: that one first, and those of the
// menu that send more bytes.
std::vector<CodecSpec> uniform_levels(const Policy& policy, const std::vector<CodecSpec>& menu);
// Those that the pieces of one plan may have side by side: pieces of a cut tensor are counted in
// buckets, and a tensor is cut as its policy's codec has it.
std::vector<CodecSpec> levels_under(const Policy& policy, const std::vector<CodecSpec>& menu);

struct PlannerQuestion {
  PlanInputs inputs;
  std::span<const double> arrival_ns;  // by tensor, without disturbance
  Conditions conditions;
  std::vector<CodecSpec> menu = default_menu();
  double tolerance =
      0.01;  // a step so much longer is as good, if it takes less of the daemon's work
};

struct Proposal {
  std::vector<Group> groups;  // for make_plan
  double step_ns = 0;         // predicted, from the start of the backward pass
  double work_ns = 0;         // of one daemon
  bool exact = true;          // false: the best of what was looked at
};

// Of plans whose steps are as good as each other: least work first, then fewest groups.
inline auto rank_of(double work_ns, size_t groups, double step_ns) {
  return std::tuple(work_ns, groups, step_ns);
}

// The rows of planners.def, each with a whole search at once.
enum class Planner : uint8_t {
#define X(name, help) k##name,
#include "scheduler/planners/planners.def"
#undef X
};
#define X(name, help) Result<Proposal> propose_##name(const PlannerQuestion& question);
#include "scheduler/planners/planners.def"
#undef X
Result<Proposal> propose(Planner planner, const PlannerQuestion& question);
Result<Planner> planner_of(const std::string& name);
template <typename Search>
Result<Proposal> propose_by(const PlannerQuestion& question) {
  constexpr uint64_t kSlice = 1 << 20;  // evaluations between looks at whether it is done
  CGX_ASSIGN_OR_RETURN(Search search, Search::create(question));
  while (!search.work(kSlice)) {
  }
  return search.proposal();
}

// The policy's own plan, to be better than; an error says why there is none.
Result<Proposal> proposal_of_policy(const PlannerQuestion& question);
Result<Proposal> proposal_of_plan(const PlannerQuestion& question, Plan plan);  // on the timeline
// The segment at one of the levels, where nothing but the policy's default has decided: the first
// is the segment's own, its ceiling; others are no stronger than that. With the codec of racks, in
// case its group goes in such.
Segment at_level(const PlannedSegment& segment, const std::vector<CodecSpec>& levels,
                 uint32_t level, const Policy& policy);
// Of two codecs the one that sends more bytes.
const CodecSpec& weaker_of(const CodecSpec& one, const CodecSpec& other);
// "12 fp32, 149 maxmin:4,bucket=512 in 4 groups": pieces of tensors, by codec.
std::string codecs_text(const std::vector<Group>& groups);
// Raw bytes of a group that searches try for all groups alike.
inline constexpr std::array kUniformBytes = {uint64_t{0},       uint64_t{1} << 18,
                                             uint64_t{1} << 20, uint64_t{1} << 22,
                                             uint64_t{1} << 24, UINT64_MAX};

}  // namespace cgx::scheduler
