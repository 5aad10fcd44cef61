// Why the daemon is to end, where it is not a signal that says so. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cgx::daemon {

struct StopOrder {
  std::string by;       // "cgxctl drain by uid 0: new kernel"; empty: nobody has asked
  bool failed = false;  // the daemon itself: `by` is what it lacks, another process may have it
  std::optional<uint64_t> limit_ns;  // for running steps; without it timeouts.drain_ms
};

}  // namespace cgx::daemon
