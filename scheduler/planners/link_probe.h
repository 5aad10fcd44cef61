// Whether a link became faster that the plan in force hardly loads. A compressed plan's frames pass
// a slow link's buffers as if it were fast, and steps that arithmetic holds up show nothing either.
// So another machine is sent bytes that say nothing, after a step, and answers at once: several
// frames of them, because what slows a link down lets a burst of a frame or so pass at once.
//
// Reads no clock. Owned by one communicator, the coordinator's.
#pragma once

#include <cstdint>

#include "scheduler/planners/step_meter.h"

namespace cgx::scheduler {

class LinkProbe {
 public:
  // Another plan is in force: what was found out is forgotten, but for how fast the link was.
  void begin();

  // A step is complete: what due() says of itself, for steps after which none is sent anyway.
  void ended(const StepSample& step);
  // A step is complete. How many bytes to send now; 0: none. At most four frames of `frame_bytes`,
  // and at first what takes no longer than half a step by what answers tell of the link: more, if
  // they are there in a moment. Where a plan's frames are not answered, a few bytes go first.
  uint64_t due(const StepSample& step, uint64_t frame_bytes);
  // Asked after a step: bytes are on their way, so the next one is not as usual.
  bool disturbs() const { return waiting_; }
  // The last of the bytes that were due is answered. True: two in a row were plainly faster than
  // all before, or the first ones under this plan than those under the one before.
  bool take(uint64_t rtt_ns);

 private:
  uint64_t bearable() const;
  void grow();

  uint64_t bytes_ = 0;  // of each probe under this plan; 0: not known yet
  uint64_t bytes_max_ = 0;
  double step_ns_ = 0;             // the quickest from one to the next; 0: not known
  double ns_per_byte_ = 0;         // at most, of the link; 0: not known
  bool scouts_ = false;            // the probe that waits, or came last, is of a few bytes
  bool waiting_ = false;           // for an answer
  double elapsed_ns_ = 0;          // since the last probe
  uint32_t steps_ = 0;             // likewise
  bool sent_ = false;              // any
  double pause_ns_ = 0;            // before the next
  double accepted_ns_ = 0;         // the quickest answer
  double before_ns_per_byte_ = 0;  // likewise, under the plan before; 0: not known
  uint32_t known_by_ = 0;          // so many answers
  uint32_t faster_ = 0;            // in a row, plainly
};

}  // namespace cgx::scheduler
