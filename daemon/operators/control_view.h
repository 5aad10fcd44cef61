// What the daemon shows of itself: a snapshot as messages, cut down to what the caller may see.
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/operators/operator_port.h"
#include "daemon/operators/targets.h"
#include "kernels/tuning.h"
#include "proto/messages/control.pb.h"
#include "proto/wire/status.h"
#include "scheduler/planners/explanation.h"
#include "scheduler/planners/job_profile.h"
#include "scheduler/planners/what_if.h"

namespace cgx::daemon {

// Looks at other machines' daemons; takes some seconds where something does not answer.
using Diagnose = std::function<v1::Diagnosis(const v1::DiagnoseRequest&, bool for_operator,
                                             const StillWaits& waits)>;

// One job as the daemons of its other machines show it.
struct FleetAnswer {
  std::vector<v1::Communicator> communicators;
  std::vector<v1::TensorList> tensors;
  std::vector<v1::Finding> findings;  // who did not answer
};
struct FleetQuestion {
  bool tensors = false;  // else its communicators
  bool for_operator = false;
  StillWaits waits = {};  // whether who asks still does
};
using AskFleet = std::function<FleetAnswer(const Snapshot&, const CommunicatorSnapshot& of,
                                           const FleetQuestion&)>;

struct DaemonFacts {  // fixed while the daemon runs
  std::string version;
  std::string instance;
  std::string lane;
  kernels::Tuning tuning;
  uint64_t tuning_ns = 0;
};

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
v1::JobProfile profile_of(const scheduler::JobProfile& profile);
v1::CurrentPolicy policy_of(const CommunicatorSnapshot& communicator);

}  // namespace cgx::daemon
