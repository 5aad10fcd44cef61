#include "scheduler/planners/link_probe.h"

#include <algorithm>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kBytesMin = 4096;  // fewer say nothing of a link
constexpr uint64_t kFrames = 4;
constexpr double kOfAStep = 0.5;  // a probe takes
// Of a step: so little says nothing, a burst may have passed at once.
constexpr double kTooLittle = 0.2;
// Of its time a link carries probes for one part in so many; the first ones, until it is known how
// long one takes, come sooner.
constexpr double kPauses = 40, kFirstPauses = 10;
constexpr double kPauseMinNs = 50e6;
constexpr uint32_t kStepsEach = 4;      // of which a probe disturbs one or two
constexpr double kPatienceNs = 2e9;     // an answer that has not come by then went with its link
constexpr double kOfTheQuickest = 0.5;  // of the quickest answer so far
constexpr uint32_t kToKnow = 5, kToTell = 2;

}  // namespace

void LinkProbe::begin() {
  const bool known = known_by_ >= kToKnow && bytes_ > 0;
  const double before = known ? accepted_ns_ / static_cast<double>(bytes_) : before_ns_per_byte_;
  *this = {};
  before_ns_per_byte_ = before;
}

void LinkProbe::ended(const StepSample& step) {
  elapsed_ns_ += step.period_ns;
  ++steps_;
  if (elapsed_ns_ >= kPatienceNs) waiting_ = false;
  const double period_ns = step.period_ns;
  if (period_ns > 0 && (step_ns_ == 0 || period_ns < step_ns_)) step_ns_ = period_ns;
}

uint64_t LinkProbe::due(const StepSample& step, uint64_t frame_bytes) {
  ended(step);
  if (waiting_ || elapsed_ns_ < pause_ns_) return 0;
  if (sent_ && faster_ == 0 && steps_ < kStepsEach) return 0;
  bytes_max_ = kFrames * frame_bytes;
  if (step.answer_ns_per_byte > 0 && bytes_ == 0) ns_per_byte_ = step.answer_ns_per_byte;
  if (bytes_ == 0) bytes_ = bearable();
  const bool scouts = bytes_ == 0 && ns_per_byte_ == 0;
  const uint64_t bytes = scouts ? kBytesMin : bytes_;
  if (bytes == 0) return 0;
  scouts_ = scouts;
  waiting_ = sent_ = true;
  elapsed_ns_ = 0;
  steps_ = 0;
  return bytes;
}

// 0: nothing is known of the link, or so few bytes that they say nothing.
uint64_t LinkProbe::bearable() const {
  if (ns_per_byte_ == 0) return 0;
  const double bytes = kOfAStep * step_ns_ / ns_per_byte_;
  if (bytes < static_cast<double>(kBytesMin)) return 0;
  return bytes < static_cast<double>(bytes_max_) ? static_cast<uint64_t>(bytes) : bytes_max_;
}

// What was known is of fewer bytes.
void LinkProbe::grow() {
  bytes_ = std::min(2 * bytes_, bytes_max_);
  accepted_ns_ = 0;
  known_by_ = faster_ = 0;
  pause_ns_ = kPauseMinNs;
}

bool LinkProbe::take(uint64_t rtt_ns) {
  if (!waiting_) return false;
  waiting_ = false;
  const auto took_ns = static_cast<double>(rtt_ns);
  if (scouts_) {
    ns_per_byte_ = took_ns / double{kBytesMin};
    pause_ns_ = kPauseMinNs;
    return false;
  }
  const bool passed_at_once = took_ns < kTooLittle * step_ns_ && bytes_ < bytes_max_;
  if (passed_at_once && known_by_ < kToKnow) {
    grow();
    return false;
  }
  ++known_by_;
  pause_ns_ = std::max(kPauseMinNs, (known_by_ < kToKnow ? kFirstPauses : kPauses) * took_ns);
  if (known_by_ > kToKnow && took_ns < kOfTheQuickest * accepted_ns_) {
    pause_ns_ = 0;
    if (++faster_ < kToTell) return false;
    faster_ = 0;
    accepted_ns_ = took_ns;
    return true;
  }
  faster_ = 0;
  accepted_ns_ = accepted_ns_ == 0 ? took_ns : std::min(accepted_ns_, took_ns);
  if (known_by_ != kToKnow || before_ns_per_byte_ == 0) return false;
  // It may have become faster while plans were tried.
  return accepted_ns_ < kOfTheQuickest * before_ns_per_byte_ * static_cast<double>(bytes_);
}

}  // namespace cgx::scheduler
