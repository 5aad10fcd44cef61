// An EventSink for what strangers can cause: so many lines a second, then a count of the rest.
// Thread rule: as its agent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/clock.h"
#include "scheduler/ports.h"

namespace cgx::daemon {

class LimitedEvents {
 public:
  explicit LimitedEvents(scheduler::EventSink& sink) : sink_(sink) {}

  void warn(uint64_t now_ns, std::string_view text) {
    if (now_ns - second_ns_ >= kSecond) {
      second_ns_ = now_ns;
      const uint32_t left_out = lines_ > kPerSecond ? lines_ - kPerSecond : 0;
      lines_ = 0;
      if (left_out > 0) {
        sink_.event(scheduler::EventLevel::kWarning,
                    "... and " + std::to_string(left_out) + " more like the last");
      }
    }
    if (++lines_ <= kPerSecond) sink_.event(scheduler::EventLevel::kWarning, text);
  }

 private:
  static constexpr uint32_t kPerSecond = 5;

  scheduler::EventSink& sink_;
  uint64_t second_ns_ = 0;
  uint32_t lines_ = 0;
};

}  // namespace cgx::daemon
