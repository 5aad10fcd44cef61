// How fast a lane's codecs are on the machine it runs on: what a search for plans begins with. A
// table from another machine is no guide: from one server to the next, arithmetic and memory differ
// by three, and not by the same factor.
//
// Thread rule: measure_speeds is for one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/codec.h"

namespace cgx::kernels {

struct CodecSpeed {
  CodecSpec spec;
  double encode_ns_per_byte = 0, decode_ns_per_byte = 0;  // of fp32
};

constexpr uint64_t kSpeedsBudgetNs = 12'000'000;

// In the order of `specs`, as many as the budget allows: of gradients in no cache, the least of
// some rounds. Each is measured to its end, so the last may exceed the budget. None where nothing
// can be kept out of the caches (cold_memory.h). The clock is best one of this thread's CPU time.
std::vector<CodecSpeed> measure_speeds(const Lane& lane, std::span<const CodecSpec> specs,
                                       uint64_t (*now_ns)());

}  // namespace cgx::kernels
