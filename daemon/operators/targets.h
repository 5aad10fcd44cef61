// Which communicators a request is about, of those that its caller may see.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "daemon/operators/caller.h"
#include "proto/messages/control.pb.h"
#include "proto/wire/status.h"
#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

using scheduler::CommunicatorSnapshot;
using scheduler::Snapshot;

// The one communicator meant. A job the caller may not see is as absent as one that does not exist.
Result<const CommunicatorSnapshot*> select(const Snapshot& snapshot, const v1::Target& target,
                                           const Caller& caller);
// All that match, possibly none; an error only for a name that matches nothing.
Result<std::vector<const CommunicatorSnapshot*>> select_all(const Snapshot& snapshot,
                                                            const v1::Target& target,
                                                            const Caller& caller);

}  // namespace cgx::daemon
