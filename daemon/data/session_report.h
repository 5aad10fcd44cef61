// What a rank is told of its communicator, in pages: who takes part, and how each tensor travels.
//
//   page := [head] line*          fields are separated by tabs, lines end in a newline
//   head := "communicator" job name ranks machines epoch codec of most elements, "feedback" or "-",
//           operations, bytes of gradients, bytes sent, what has become of residuals that were kept
//           under the name (empty: nothing)                 only on the page of tensor 0
//   line := "tensor" name codec "feedback" or "-", elements, bytes of a gradient, bytes encoded,
//           group, squared norm intended, squared norm sent (0: not measured)
//
// Thread rule: pure functions.
#pragma once

#include "proto/wire/session_messages.h"
#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

// value0: the first tensor of the next page, 0 if this is the last.
wire::Reply report_page(scheduler::CommunicatorSnapshot& communicator, uint32_t first);

}  // namespace cgx::daemon
