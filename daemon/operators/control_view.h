// What the daemon shows of itself: a snapshot as messages, cut down to what the caller may see.
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/operators/caller.h"
#include "kernels/tuning.h"
#include "proto/messages/control.pb.h"
#include "proto/wire/status.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/planners/explanation.h"
#include "scheduler/planners/what_if.h"

namespace cgx::daemon {

using scheduler::CommunicatorSnapshot;
using scheduler::Snapshot;

// Looks at other machines' daemons; takes some seconds where something does not answer.
using Diagnose = std::function<v1::Diagnosis(const v1::DiagnoseRequest&)>;

// One job as the daemons of its other machines show it.
struct FleetAnswer {
  std::vector<v1::Communicator> communicators;
  std::vector<v1::TensorList> tensors;
  std::vector<v1::Finding> findings;  // who did not answer
};
using AskFleet =
    std::function<FleetAnswer(const Snapshot&, const CommunicatorSnapshot& of, bool tensors)>;

struct DaemonFacts {  // fixed while the daemon runs
  std::string version;
  std::string instance;
  std::string lane;
  kernels::Tuning tuning;
  uint64_t tuning_ns = 0;
};

// The one communicator meant. A job the caller may not see is as absent as one that does not exist.
Result<const CommunicatorSnapshot*> select(const Snapshot& snapshot, const v1::Target& target,
                                           const Caller& caller);
// All that match, possibly none; an error only for a name that matches nothing.
Result<std::vector<const CommunicatorSnapshot*>> select_all(const Snapshot& snapshot,
                                                            const v1::Target& target,
                                                            const Caller& caller);

v1::DaemonStatus status_of(const Snapshot& snapshot, const DaemonFacts& facts,
                           const Caller& caller);
v1::CounterList counters_of(const Snapshot& snapshot);
v1::CodecList codec_list();
Result<v1::JobList> jobs_of(const Snapshot& snapshot, const v1::Target& target,
                            const Caller& caller);
Result<v1::PeerList> peers_of(const Snapshot& snapshot, const v1::Target& target,
                              const Caller& caller);
v1::Communicator communicator_of(const CommunicatorSnapshot& communicator);
v1::TensorList tensors_of(const CommunicatorSnapshot& communicator);
void add_prices(const scheduler::Explanation& priced, v1::TensorExplanation& message);
v1::SimulatedPlan simulated_of(const scheduler::WhatIf& found);
v1::CurrentPolicy policy_of(const CommunicatorSnapshot& communicator);

}  // namespace cgx::daemon
