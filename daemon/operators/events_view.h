// What the recorder remembers as messages: cut down to what the caller may see, with the names that
// a snapshot knows. Thread rule: pure functions.
#pragma once

#include "daemon/operators/caller.h"
#include "proto/messages/control.pb.h"
#include "proto/wire/status.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/recorder.h"

namespace cgx::daemon {

struct ClockPair {  // read together
  uint64_t monotonic_ns = 0;
  uint64_t unix_ns = 0;
};

// REQUIRES: the snapshot is the younger one, so it knows whoever has been made. Of a communicator
// that is gone nobody knows whose it was: operators alone see its events, as those of "#7".
Result<v1::EventList> events_of(const scheduler::RecorderReader::Reading& reading,
                                const scheduler::Snapshot& snapshot,
                                const v1::ListEventsRequest& request, const Caller& caller,
                                const ClockPair& now);

}  // namespace cgx::daemon
