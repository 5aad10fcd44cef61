// An operator wants the daemon to end. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cgx::daemon {

struct StopOrder {
  std::string by;                    // "cgxctl drain by uid 0: new kernel"; empty: nobody has asked
  std::optional<uint64_t> limit_ns;  // for running steps; without it timeouts.drain_ms
};

}  // namespace cgx::daemon
