// What is said of a plan that was tried.
#pragma once

#include <cstdint>
#include <string>

namespace cgx::scheduler {

// What a search of `mode: auto` found out about a plan.
struct PlanNote {
  uint64_t epoch = 0;    // the plan's; 0: it never ran
  uint64_t step = 0;     // its first one; if it never ran, that in which this was found
  std::string name;      // "choose", a codec
  std::string verdict;   // "kept", "no faster", why it could not run
  double predicted = 0;  // share of the step under the plan before; 0: nobody has said
  double measured = 0;   // as predicted
  double step_ns = 0;    // from one step's end to the next; 0: not measured
  bool limits = false;   // of no plan: what the search has to do without
};

// Of a share, as people read it.
inline uint64_t percent_of(double share) {
  return static_cast<uint64_t>(100 * share + 0.5);
}

}  // namespace cgx::scheduler
