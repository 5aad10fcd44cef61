// What the steps of a communicator took on this machine, from the events that are recorded of it.
// Whoever decides by it reads samples; nothing here decides. Owned by one communicator.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/recorder.h"

namespace cgx::scheduler {

struct StepSample {
  uint64_t step = 0, epoch = 0;
  double period_ns = 0;           // since the step before it was complete; 0: not known
  double step_ns = 0;             // from its first gradient until it was complete
  double arithmetic_ns = 0;       // the daemon's, as far as it was timed
  double busy_ns = 0;             // the daemon's thread, in the period; 0: not known
  double answer_ns_per_byte = 0;  // of the quickest answer (answer_meter.h); 0: none came
  std::vector<float> arrival_ns;  // by tensor, since the first; of the last rank here to have it
};

// Of the steps, the one that took as long as they usually did. REQUIRES: there are some.
StepSample usual_of(std::vector<StepSample> samples);

class StepMeter {
 public:
  // A table of so many tensors; what was measured before is forgotten.
  void begin(size_t tensors);

  // The sample of a step that this event completes.
  std::optional<StepSample> take(const Event& event, uint64_t now_ns);

 private:
  struct Open {
    bool any = false;
    uint32_t step = 0;
    uint64_t first_ns = 0;
    StepSample sample;
  };
  Open& open(uint32_t step);

  size_t tensors_ = 0;
  std::array<Open, 2> open_;  // a rank may be a step ahead of others
  uint64_t completed_ns_ = 0;
  uint32_t completed_step_ = 0;
};

}  // namespace cgx::scheduler
