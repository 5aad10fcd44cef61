#include "tests/sim/coverage.h"

namespace cgx::sim {
namespace {

const char* const kPaceNames[kPaces] = {"inline", "priced", "late"};
const char* const kHappeningNames[kHappenings] = {
    "step",   "residual", "racks",  "absences", "nonfinite", "dropped", "redo",
    "commit", "policy",   "search", "leave",    "death",     "device"};

}  // namespace

bool Coverage::possible(size_t cell) {
  const auto pace = static_cast<SitePace>(cell / kHappenings % kPaces);
  const auto happening = static_cast<Happening>(cell % kHappenings);
  const auto row = static_cast<scheduler::Collective>(cell / kHappenings / kPaces);
  if (happening == Happening::kRacks) return row == scheduler::Collective::kTwoLevel;
  return !(pace == SitePace::kInline && happening == Happening::kDevice);
}

std::string Coverage::text(size_t cell) {
  return scheduler::kCollectives[cell / kHappenings / kPaces] + std::string(", ") +
         kPaceNames[cell / kHappenings % kPaces] + ", " + kHappeningNames[cell % kHappenings];
}

}  // namespace cgx::sim
