// What an engine is made with, and what operators may ask of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "scheduler/communicator/kept_profiles.h"
#include "scheduler/communicator/plan_history.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/exchange/site.h"
#include "scheduler/plan/job_weight.h"
#include "scheduler/plan/policy.h"
#include "scheduler/planners/costs.h"
#include "scheduler/planners/explanation.h"
#include "scheduler/planners/job_profile.h"
#include "scheduler/planners/planner_port.h"
#include "scheduler/planners/survey.h"
#include "scheduler/planners/what_if.h"
#include "scheduler/ports.h"
#include "scheduler/recorder.h"
#include "transport/transport.h"

namespace cgx::scheduler {

struct EngineOptions {
  wire::InstanceId instance{};
  std::string mesh_address;  // advertised; empty: one machine only
  std::string name;          // for messages: "node3"
  const kernels::Lane* lane = nullptr;
  Policy policy;  // default of communicators coordinated here
  JobWeights job_weights;
  Timeouts timeouts;
  Limits limits;
  // Communicators coordinated here follow it; null: they plan.
  std::shared_ptr<const std::vector<PlanEntry>> plan_history;
  // Plans that earlier engines have kept; null: none.
  std::shared_ptr<const KeptProfiles> profiles;
  // For policies of mode auto; null: they stay with the plan they begin with.
  std::shared_ptr<const MachineCosts> costs;
  uint32_t cores = 0;  // for trainers and daemon together; 0: enough
  SearchPace search;
};

// Makes the site at which a machine's host ranks compute, of the one that computes inline.
using SiteMaker = std::function<std::unique_ptr<Site>(std::unique_ptr<Site> inline_site)>;

struct EnginePorts {
  transport::Transport* transport = nullptr;  // null: one machine only
  LinkPort* links = nullptr;
  EventSink* events = nullptr;
  PlanLog* plans = nullptr;        // null: no history is kept
  ProfileLog* profiles = nullptr;  // null: what is kept ends with the engine
  PlannerPort* planner = nullptr;  // null: plans are made on this thread
  Recorder* recorder = nullptr;    // null: nothing is recorded
  const Clock* clock = nullptr;    // of what is recorded; null: nothing takes time within a round
  SiteMaker site = {};             // null: the inline one
};

struct PolicyRequest {
  std::string job, communicator;  // empty: the only one
  uint32_t uid = 0;
  bool any_uid = false;  // operators may change every job
  Policy policy;
  bool dry_run = false;
  uint64_t expected_version =
      0;  // refused unless that is the last one agreed on; 0: whatever it is
};
using PolicyAnswer = std::function<void(const Result<PolicyChange>&)>;

struct ExplainRequest {
  std::string job, communicator;  // as PolicyRequest's
  uint32_t uid = 0;
  std::string tensor;
};
using ExplainAnswer = std::function<void(const Result<Explanation>&)>;

struct WhatIfRequest {
  std::string job, communicator;  // likewise
  uint32_t uid = 0;
  Policy policy;
  uint32_t machines = 0;  // 0: as many as there are
};
using WhatIfAnswer = std::function<void(const Result<WhatIf>&)>;

struct ProfileRequest {
  std::string job, communicator;  // likewise
  uint32_t uid = 0;
};
using ProfileAnswer = std::function<void(const Result<JobProfile>&)>;

}  // namespace cgx::scheduler
