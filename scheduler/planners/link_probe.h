// Whether a link became faster that the plan in force hardly loads. A compressed plan's frames pass
// a slow link's buffers as if it were fast, and steps that arithmetic holds up show nothing either.
// So another machine is sent bytes that say nothing, after a step, and answers at once.
//
// Reads no clock. Owned by one communicator, the coordinator's.
#pragma once

#include <cstdint>

#include "scheduler/planners/step_meter.h"

namespace cgx::scheduler {

class LinkProbe {
 public:
  // Another plan is in force: what was found out before is forgotten.
  void begin() { *this = {}; }

  // A step is complete. How many bytes to send now; 0: none. At most `bytes_max`, and what takes no
  // longer than a step by what answers tell of the link.
  uint64_t due(const StepSample& step, uint64_t bytes_max);
  // Bytes that were due have been answered. True: two in a row were plainly faster than before.
  bool take(uint64_t rtt_ns);

 private:
  uint64_t bytes_ = 0;      // of each probe under this plan; 0: not known yet
  bool waiting_ = false;    // for an answer
  double elapsed_ns_ = 0;   // since the last probe
  double pause_ns_ = 0;     // before the next
  double accepted_ns_ = 0;  // the quickest answer
  uint32_t known_by_ = 0;   // so many answers
  uint32_t faster_ = 0;     // in a row, plainly
};

}  // namespace cgx::scheduler
