// The policy between its message (config/, gRPC) and its plain form (scheduler/).
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "proto/messages/policy.pb.h"
#include "proto/wire/status.h"
#include "scheduler/plan/policy.h"

namespace cgx::daemon {

// What config/ cannot know: codec and lane texts. Pass to every config:: function that checks.
config::Checks config_checks();

struct CheckedPolicy {
  v1::Policy message;  // complete
  scheduler::Policy plain;
  std::vector<std::string> warnings;  // doubtful, allowed
};

// Checks, completes and translates. The error names each key that is wrong.
Result<CheckedPolicy> check_policy(const v1::Policy& message);

// `wish` with what it does not say from `base`. `no_rules`: that it has none is said. A wish that
// says nothing is an error.
Result<v1::Policy> fill_from(const v1::Policy& base, const v1::Policy& wish, bool no_rules);

v1::Policy to_message(const scheduler::Policy& policy);

}  // namespace cgx::daemon
