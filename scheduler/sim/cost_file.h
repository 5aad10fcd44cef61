// What work costs, from the table that tests/bench writes (bench_codec_cost): one object a line,
//
//   {"machine": "AMD EPYC", "copy": 18.6}
//   {"codec": "maxmin:4,bucket=512", "lane": "avx2", "encode": 30.2, "decode": 18.4}
//   {"operation_ns": 12000, "segment_ns": 1500, "frame_ns": 3000, "wire_ns_per_byte": 0.14}
//
// `copy`: GB/s of what is copied; `encode`, `decode`: GB/s of fp32 on one core. The last object is
// what the daemon adds; a table without that object has the built-in figures.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/planners/costs.h"

namespace cgx::scheduler::sim {

// `lane` empty: the one that comes first, the best.
Result<MachineCosts> parse_costs(std::string_view text, const std::string& file_name,
                                 std::string_view lane);

std::string_view builtin_costs();  // tests/bench/codec_cost.json as it was when this was built

}  // namespace cgx::scheduler::sim
