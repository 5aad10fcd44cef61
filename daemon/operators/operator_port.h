// What the control service may ask of the engine: a thread-safe port, implemented by a mailbox into
// the engine's thread. Every call is bounded by its deadline; nothing here blocks the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "proto/wire/status.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/planners/explanation.h"
#include "scheduler/planners/job_profile.h"
#include "scheduler/planners/what_if.h"
#include "scheduler/recorder.h"

namespace cgx::daemon {

struct CommunicatorName {
  std::string job;           // empty: the only one there is, else an error lists the names
  std::string communicator;  // empty: likewise
  uint32_t uid = 0;          // the job's owner: two users' jobs may share a name
};

// How long who asked waits for an answer; `waits`, where it is said: whether it still does.
using StillWaits = std::function<bool()>;
struct Patience {
  uint64_t timeout_ns = 0;
  StillWaits waits = {};
};

class OperatorPort {
 public:
  virtual ~OperatorPort() = default;

  virtual Result<scheduler::Snapshot> snapshot(uint64_t timeout_ns) = 0;

  // What the recorder still holds from event number `from` on. Does not ask the engine.
  virtual Result<scheduler::RecorderReader::Reading> events(uint64_t from) = 0;

  // Forwards to the coordinator if this daemon is not it. dry_run prepares, reports and drops.
  // Blocks until the plan took effect everywhere (the switch step is known), or for so long. What
  // has not begun by then is not done any more; else the answer says that it may still be.
  // expected_version: as PolicyRequest's.
  virtual Result<scheduler::PolicyChange> apply_policy(const CommunicatorName& target,
                                                       const scheduler::Policy& policy,
                                                       bool dry_run, uint64_t expected_version,
                                                       const Patience& patience) = 0;

  // All three wait for steps that are measured meanwhile, on the coordinator's machine only.
  virtual Result<scheduler::Explanation> explain(const CommunicatorName& target,
                                                 const std::string& tensor,
                                                 const Patience& patience) = 0;
  virtual Result<scheduler::WhatIf> what_if(const CommunicatorName& target,
                                            const scheduler::Policy& policy, uint32_t machines,
                                            const Patience& patience) = 0;
  virtual Result<scheduler::JobProfile> profile(const CommunicatorName& target,
                                                const Patience& patience) = 0;
};

}  // namespace cgx::daemon
