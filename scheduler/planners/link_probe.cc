#include "scheduler/planners/link_probe.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kBytesMin = 4096;  // fewer say nothing of a link
constexpr double kPauses = 50;        // of its time a link carries probes for 1 / kPauses
constexpr double kPauseMinNs = 50e6;
constexpr double kPatienceNs = 2e9;     // an answer that has not come by then went with its link
constexpr double kOfTheQuickest = 0.6;  // of the quickest answer so far
constexpr uint32_t kToKnow = 3, kToTell = 2;

}  // namespace

uint64_t LinkProbe::due(const StepSample& step, uint64_t bytes_max) {
  elapsed_ns_ += step.period_ns;
  if (elapsed_ns_ < (waiting_ ? kPatienceNs : pause_ns_)) return 0;
  if (bytes_ == 0) {
    if (step.answer_ns_per_byte <= 0) return 0;
    const double bearable = step.period_ns / step.answer_ns_per_byte;
    if (bearable < static_cast<double>(kBytesMin)) return 0;
    bytes_ =
        bearable < static_cast<double>(bytes_max) ? static_cast<uint64_t>(bearable) : bytes_max;
  }
  waiting_ = true;
  elapsed_ns_ = 0;
  return bytes_;
}

bool LinkProbe::take(uint64_t rtt_ns) {
  if (!waiting_) return false;
  waiting_ = false;
  const auto took_ns = static_cast<double>(rtt_ns);
  pause_ns_ = std::max(kPauseMinNs, kPauses * took_ns);
  ++known_by_;
  if (known_by_ > kToKnow && took_ns < kOfTheQuickest * accepted_ns_) {
    pause_ns_ = 0;
    if (++faster_ < kToTell) return false;
    faster_ = 0;
    accepted_ns_ = took_ns;
    return true;
  }
  faster_ = 0;
  accepted_ns_ = accepted_ns_ == 0 ? took_ns : std::min(accepted_ns_, took_ns);
  return false;
}

}  // namespace cgx::scheduler
