// What lies on which lane of a run, as bars from the beginning of the step. Thread rule: pure
// functions.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace cgx::scheduler::sim {

struct Run;

constexpr std::array<const char*, 4> kLanes = {"trainers", "daemon", "link", "operations"};

struct Bar {
  static constexpr uint32_t kForward = UINT32_MAX;

  uint32_t lane = 0;   // in kLanes
  uint32_t group = 0;  // or kForward
  double begin_ns = 0, end_ns = 0;
};
std::vector<Bar> bars_of(const Run& run);

}  // namespace cgx::scheduler::sim
