// How many cores this process may use: its cpuset and its cgroup's quota, not the machine's count.
// Thread rule: reads /proc and the cgroup file system; call at start.
#pragma once

#include <cstdint>
#include <string>

namespace cgx {

uint32_t usable_cores();

// "max 100000" or "150000 100000" (cpu.max of cgroup v2) -> whole cores, at least 1; UINT32_MAX: no
// limit. Exposed for tests.
uint32_t cores_of_quota(const std::string& quota);

}  // namespace cgx
