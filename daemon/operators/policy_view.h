// What operators see of policies: what a change would do, and which there were.
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <string>

#include "daemon/operators/control_view.h"
#include "proto/messages/control.pb.h"
#include "scheduler/plan/policy.h"

namespace cgx::daemon {

// Of the plan in force and of one that `wanted` would make. An error: its rules do not compile.
Result<v1::PolicyEffect> effect_of(const CommunicatorSnapshot& communicator,
                                   const scheduler::Policy& wanted,
                                   const std::function<bool()>& goes_on);

// Empty: nothing that travels exactly now would be compressed.
std::string loss_text(const v1::PolicyEffect& effect);

// The coordinator's configuration for the job; where that is not known, what runs.
v1::Policy configured_policy(const CommunicatorSnapshot& communicator);
v1::PolicyHistory history_of(const CommunicatorSnapshot& communicator);

void add_differences(const v1::Policy& from, const v1::Policy& to,
                     google::protobuf::RepeatedPtrField<v1::Difference>& differences);

}  // namespace cgx::daemon
