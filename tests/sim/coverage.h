// Which combinations a played program has met: how a group goes, how the slowest machine's
// arithmetic answers, and what happened. The random programs must meet all of them.
#pragma once

#include <bitset>
#include <string>

#include "scheduler/plan/collective.h"
#include "tests/sim/program.h"

namespace cgx::sim {

enum class Happening : uint8_t {
  kStep,
  kResidual,  // a step under a codec with error feedback
  kRacks,     // a step under a codec of racks
  kAbsences,
  kNonfinite,
  kDropped,
  kRedo,    // a step that some rank had to say again
  kCommit,  // a step under a new table
  kPolicy,  // the first one of an operator's plan
  kSearch,  // the first one of a plan that mode auto has proposed, or of the better order
  kLeave,   // what ended a program, under the plan in force last
  kDeath,   // of a rank, a daemon or a link
  kDevice,  // of a site
  kCount
};
constexpr size_t kHappenings = static_cast<size_t>(Happening::kCount);
constexpr size_t kPaces = 3, kRows = std::size(scheduler::kCollectives);

class Coverage {
 public:
  static constexpr size_t kCells = kRows * kPaces * kHappenings;

  void meet(scheduler::Collective row, SitePace pace, Happening happening) {
    cells_.set(cell(row, pace, happening));
  }
  bool met(size_t cell) const { return cells_[cell]; }
  // False: no program can meet it. Only two levels have a codec of racks; an inline site stays.
  static bool possible(size_t cell);
  static std::string text(size_t cell);  // "two_level, late, dropped"
  std::string to_string() const { return cells_.to_string(); }
  static Coverage from_string(const std::string& text) {
    Coverage coverage;
    coverage.cells_ = std::bitset<kCells>(text);
    return coverage;
  }

 private:
  static size_t cell(scheduler::Collective row, SitePace pace, Happening happening) {
    return (static_cast<size_t>(row) * kPaces + static_cast<size_t>(pace)) * kHappenings +
           static_cast<size_t>(happening);
  }
  std::bitset<kCells> cells_;
};

}  // namespace cgx::sim
