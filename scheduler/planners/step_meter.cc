#include "scheduler/planners/step_meter.h"

#include <algorithm>
#include <utility>

namespace cgx::scheduler {

StepSample usual_of(std::vector<StepSample> samples) {
  const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end(),
                   [](const auto& one, const auto& other) { return one.step_ns < other.step_ns; });
  return std::move(*middle);
}

void StepMeter::begin(size_t tensors) {
  *this = {};
  tensors_ = tensors;
}

StepMeter::Open& StepMeter::open(uint32_t step) {
  Open& open = open_[step % open_.size()];
  if (!open.any || open.step != step) {
    open = {.any = true, .step = step, .first_ns = 0, .sample = {}};
    open.sample.arrival_ns.assign(tensors_, 0.0f);
  }
  return open;
}

std::optional<StepSample> StepMeter::take(const Event& event, uint64_t now_ns) {
  if (event.group == Event::kCall && event.kind != EventKind::kstep_completed) return {};
  switch (event.kind) {
    case EventKind::karrival: {
      Open& of = open(event.step);
      if (of.first_ns == 0) of.first_ns = now_ns;
      if (event.a < tensors_) {
        of.sample.arrival_ns[event.a] = static_cast<float>(now_ns - of.first_ns);
      }
      return {};
    }
    case EventKind::kencode:
    case EventKind::kreduce:
    case EventKind::kcombine:
    case EventKind::kdecode:
      open(event.step).sample.arithmetic_ns += static_cast<double>(event.b);
      return {};
    case EventKind::kstep_completed:
      break;
    default:
      return {};
  }
  Open done = std::exchange(open(event.step), {});
  const bool follows = completed_ns_ != 0 && event.step == completed_step_ + 1;
  done.sample.step = event.step;
  done.sample.epoch = event.b;
  done.sample.period_ns = follows ? static_cast<double>(now_ns - completed_ns_) : 0;
  done.sample.step_ns = done.first_ns == 0 ? 0 : static_cast<double>(now_ns - done.first_ns);
  completed_ns_ = now_ns;
  completed_step_ = event.step;
  return std::move(done.sample);
}

}  // namespace cgx::scheduler
