// Why the daemon is to end, where it is not a signal that says so; and who is asked to end it.
// Thread rule: plain values; the port from anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cgx::daemon {

struct StopOrder {
  std::string by;       // "cgxctl drain by uid 0: new kernel"; empty: nobody has asked
  bool failed = false;  // the daemon itself: `by` is what it lacks, another process may have it
  std::optional<uint64_t> limit_ns;  // for running steps; without it timeouts.drain_ms
};

struct Draining {  // under way
  std::string why;
  uint64_t begun_ns;
  uint64_t end_ns;  // at the latest
};

class StopPort {
 public:
  virtual ~StopPort() = default;
  virtual void stop(const StopOrder& order) = 0;
  // What had not left when the daemon's patience ended; nullopt: it still drains after this time.
  virtual std::optional<std::vector<std::string>> cut_off(uint64_t within_ns) = 0;
  virtual std::optional<Draining> draining() const = 0;
};

}  // namespace cgx::daemon
