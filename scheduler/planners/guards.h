// The guard rail below ceilings: a tensor whose codec hurts it takes a weaker one, uncompressed at
// last, and comes back carefully. Hurt is: values that are not finite, a residual that outgrows the
// gradient, or hardly anything that arrives. Never on trial, and whatever a step's time says.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/planners/ceilings.h"

namespace cgx::scheduler {

struct Guarded {
  std::vector<CodecSpec> ceilings;
  std::vector<Guard> guards;
  uint32_t weakened = 0;  // tensors
};
// The ceilings of `base` as these guards have them.
Guarded under_guards(const CeilingQuestion& question, const std::vector<CodecSpec>& base,
                     std::vector<Guard> guards);
// The same after the question's guards have followed what was measured since.
Guarded guard(const CeilingQuestion& question, const std::vector<CodecSpec>& base);

}  // namespace cgx::scheduler
