// What the daemon shows of itself: plain values, copied out of the engine between two rounds of
// work, and the plan by reference.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/types.h"
#include "scheduler/counters.h"
#include "scheduler/plan/losses.h"
#include "scheduler/plan/plan_origin.h"
#include "scheduler/plan/policy.h"
#include "scheduler/planners/plan_note.h"
#include "scheduler/planners/trial_account.h"
#include "scheduler/shares.h"

namespace cgx::scheduler {

struct SwitchSnapshot {  // one plan that took effect
  uint64_t epoch = 0;
  uint64_t step = 0;  // the first step it governs, on every rank
  uint64_t policy_version = 0;
  uint64_t plan_hash = 0;
  PlanOrigin origin = {};
};

// What the coordinator lets tensors take at most, by tensor of the plan that it has agreed on last.
struct SetCeilings {
  std::vector<CodecSpec> ceilings;  // empty: the policy's codec for all
  std::vector<CodecSpec> base;      // before guards; empty: the same
};

struct GroupSnapshot {
  uint32_t index = 0;
  uint32_t tensors = 0;
  uint64_t raw_bytes = 0;
  uint64_t encoded_bytes = 0;       // with every tensor present, at most
  std::string collective;           // a row of schedules.def
  std::string reason;               // why this one
  uint64_t rack_encoded_bytes = 0;  // of what is added within racks; 0: as everything else
};

struct TensorSnapshot {
  std::string name;
  DType dtype = DType::kF32;
  uint64_t elements = 0;
  std::vector<uint64_t> shape;
  uint32_t group = 0;
  CodecSpec codec;
  // What decided: "default", "rule 2: \\.weight$", "below min_elements", "guard: ..."
  std::string reason;
  double intended_sq = 0, sent_sq = 0;  // as Norms
  std::optional<CodecSpec> rack_codec;  // of what is added within racks; none: the same
};

struct RankSnapshot {
  uint32_t rank = 0;
  uint32_t machine = 0;
  uint64_t step = 0;     // last step it submitted to (local ranks only)
  uint64_t late_ns = 0;  // > 0: ranks of this machine wait for it, since that long
  bool local = false;
};

struct PolicyVersion {  // since a plan made from it took force
  uint64_t version = 0;
  uint64_t epoch = 0, step = 0;  // of that plan; 0: it never was in force
  Policy policy;
};

struct PlanFacts;

struct CommunicatorSnapshot {
  std::string job, name;
  uint32_t uid = 0;
  uint64_t id = 0;
  std::string device;       // the GPU that its ranks here have their tensors on; empty: the host
  std::string staged;       // why the tensors of a GPU are staged on the host; empty: none is
  uint16_t index = 0;       // in the recorder; another one's after it is gone and 65,000 came
  uint64_t created_ns = 0;  // no earlier event of that index is its
  uint32_t ranks = 0, machines = 0, local_machine = 0;  // the coordinator is machine 0
#define X(name, ...) uint64_t name = 0;
#include "proto/wire/figures.def"
#undef X
  std::string state;  // "joining", "ready", "running", "frozen", "failed"
  std::string error;  // last failure, empty if none
  // The coordinator's: what has become of residuals of an earlier communicator of the name; empty:
  // there were none.
  std::string feedback_begins;
  std::vector<SwitchSnapshot> switches;  // newest last, at most 16
  // The coordinator's configuration for the job, then what came after; newest last, at most 17.
  std::vector<std::shared_ptr<const PolicyVersion>> policies;
  std::string searching;  // what mode auto does now; empty: the mode is fixed, or elsewhere
  TrialTime trial_time;   // where it does something
  std::vector<PlanNote> plan_notes;             // newest last, at most 32
  std::shared_ptr<const PlanFacts> plan;        // null: none yet
  std::vector<Norms> norms;                     // by tensor of the plan
  std::shared_ptr<const SetCeilings> ceilings;  // the coordinator's; null: of other machines
  // show_plan() fills these in, on the thread that wants to see them.
  Policy policy;
  std::vector<GroupSnapshot> groups;
  std::vector<TensorSnapshot> tensors;  // their reasons: show_reasons()
  std::vector<RankSnapshot> rank_list;
};

struct PeerSnapshot {
  std::string job, name, address;
  uint32_t uid = 0;  // the job's owner
  uint32_t machine = 0;
  std::string state;  // "connecting", "up", "lost"
  uint64_t heartbeat_age_ns = 0, rtt_ns = 0;
  uint64_t frames_sent = 0, frames_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t progress = 0;
  std::string device;  // the GPU here that it is a peer of; empty: the host
};

struct SessionSnapshot {
  uint32_t uid = 0;
  int32_t pid = 0;
  std::string job;
  uint64_t arena_bytes = 0;
  uint32_t arenas = 0;
  uint64_t submits = 0, completions = 0;
};

// The thread that moves gradients. Its rounds: from one look at everything to the next.
struct RoundSnapshot {
  uint64_t cpu_ns = 0, wall_ns = 0;
  std::string_view what;  // what took most of it, for good
};
struct DutySnapshot {
  uint64_t rounds = 0;                    // that found work
  uint64_t busy_ns = 0;                   // what they took
  uint64_t cpu_ns = 0;                    // processor time of the thread, looking included
  RoundSnapshot longest, longest_lately;  // by processor time; the second of the last minute
};

// A GPU that a job here has memory on, with a worker of its own.
struct GpuSnapshot {
  uint32_t uid = 0;
  std::string job, device, driver;
  bool mps = false;
  bool asks_events = false;                 // its streams write no words to say what is done
  uint32_t arenas_vmm = 0, arenas_ipc = 0;  // how their memory came
};

struct Snapshot {
  uint64_t uptime_ns = 0;
  DutySnapshot duty;
  Counters counters{};
  std::vector<CommunicatorSnapshot> communicators;
  std::vector<PeerSnapshot> peers;
  std::vector<SessionSnapshot> sessions;
  std::vector<GpuSnapshot> gpus;  // the daemon's data thread adds them
  uint32_t links = 0;             // to other daemons, those that linger included
  uint64_t residual_bytes = 0;    // of jobs that may come back
  std::vector<Share> shares;
};

// The engine's thread hands out what costs it nothing; these make of it what people read. Both do
// nothing where there is no plan.
void show_plan(CommunicatorSnapshot& shown);
void show_reasons(CommunicatorSnapshot& shown);  // after show_plan()

// Where and when a policy change took, or would take, effect.
struct PolicyChange {
  uint64_t policy_version = 0;
  uint64_t epoch = 0;
  uint64_t switch_step = 0;  // first step under the new plan, the same on every rank
  uint64_t reserved_bytes = 0;
  std::vector<std::string> warnings;
};

}  // namespace cgx::scheduler
