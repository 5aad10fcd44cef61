// Control messages between the daemons of a communicator: joining, plans, failures, terms.
//
// They travel as kControl frames on the same ordered links as the data, so that a simulated cluster
// exercises them too. A body that does not decode exactly is a PROTOCOL_ERROR of that peer.
//
//   member                       coordinator (machine 0)
//   Join                   ->                              local ranks are here, links are up
//                          <-    Joined                    all machines are (or the difference)
//   Table                  ->                              every local rank has committed
//                          <-    Prepare                   plan; also for policies and reordering
//   Prepared               ->                              validated and reserved, or the refusal
//                          <-    Decided                   in force from switch_step on, or dropped
//   Report                 ->                              frozen, and everybody's Flush is here
//                          <-    Start                     new term
//   PolicyAsk              ->                              forwarded from an operator
//                          <-    PolicyAnswer
//                          <-    ProfileAsk                what does work take there?
//   ProfileAnswer          ->                              a machine's profile, or the refusal
//   Failure, Flush, CallFailure, ReplicaHash, Left, Bye : from any machine to all others
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "proto/wire/frame.h"
#include "proto/wire/status.h"
#include "scheduler/plan/losses.h"
#include "scheduler/plan/plan_origin.h"
#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

// Of a text for people, on either side; the rest of a longer one is cut off.
inline constexpr size_t kTextBytesMax = 4096;
// Of a message without a table, a plan or a policy.
inline constexpr size_t kShortControlBytesMax = 512 << 10;

struct Join {
  uint64_t shape_hash = 0;  // of ranks, machines and their order, as this machine sees them
  uint64_t first_step = 0;
  // What this machine keeps of the communicator's life before.
  uint64_t residual_step_end = 0, residual_lineage = 0;
};
struct Joined {
  StatusCode code = StatusCode::kOK;
  std::string text;
  Policy configured;           // what the coordinator's configuration says for the job
  uint8_t keep_residuals = 0;  // all machines have those of one step; otherwise they begin at zero
};
struct Table {
  std::vector<std::byte> table;
};
enum class PlanPurpose : uint8_t {
  kCommit,
  kPolicy,   // an operator's
  kPlanner,  // what the coordinator itself thought of
};
struct Prepare {
  PlanPurpose purpose = PlanPurpose::kCommit;
  uint8_t dry_run = 0;
  Policy policy;  // what the plan was made from, to be shown
  std::vector<std::byte> plan;
};
struct Prepared {
  uint64_t epoch = 0;
  StatusCode code = StatusCode::kOK;
  std::string text;
  uint64_t reserved_bytes = 0;
};
struct Decided {
  uint64_t epoch = 0;
  StatusCode code = StatusCode::kOK;  // not OK: the plan was dropped, text says why
  std::string text;
  PlanPurpose purpose = PlanPurpose::kCommit;
  uint64_t switch_step = 0;
  PlanOrigin origin = {};  // to be shown
};
// What a failure takes along; that of a call is a message of its own.
enum class Scope : uint8_t { kStep, kCommunicator };
struct Failure {  // on every rank
  StatusCode code = StatusCode::kINTERNAL;
  std::string text;
  Scope scope = Scope::kStep;
};
struct CallFailure {
  uint64_t call = 0;
  StatusCode code = StatusCode::kINTERNAL;
  std::string text;
};
struct Flush {};  // behind the last frame that its machine sends in a term
struct Report {
  uint64_t completed_end = 0;  // first step that has not completed for the local ranks
  uint64_t results_end = 0;    // first step whose results are not all here, or were given up
  uint64_t started_end = 0;    // first step not started here
  uint64_t epoch = 0, plan_hash = 0;
  uint64_t calls_end = 0;            // first call no local rank has submitted
  std::vector<uint64_t> calls_open;  // submitted, neither complete here nor failed
  std::vector<uint64_t> calls_done;  // the last ones that completed here
};
struct Start {
  uint64_t first_step = 0;
  uint64_t calls_end = 0;  // calls below it that are not complete have failed everywhere
  StatusCode code = StatusCode::kINTERNAL;  // why the term before ended: what ranks are told
  std::string text;
  uint64_t epoch = 0, plan_hash = 0;  // in force at first_step
  std::vector<std::byte> plan;        // with its policy, if a machine reported another; else empty
  Policy policy;
};
struct Left {  // a rank closed the communicator with nothing unfinished
  uint32_t rank = 0;
  // The first it takes no part in.
  uint64_t step_end = 0, calls_end = 0, commits_end = 0;
};
struct PolicyAsk {
  uint64_t ticket = 0;
  uint8_t dry_run = 0;
  uint64_t expected_version = 0;
  Policy policy;
};
struct PolicyAnswerMessage {
  uint64_t ticket = 0;
  StatusCode code = StatusCode::kOK;
  std::string text;
  uint64_t policy_version = 0, epoch = 0, switch_step = 0, reserved_bytes = 0;
  std::vector<std::string> warnings;
};
struct ReplicaHash {
  uint64_t step = 0;
  uint32_t tensor = 0;
  uint64_t hash = 0;
  std::string lane;
};
// What codecs would have lost of a machine's gradients in a step, all tensors together: LossSample.
struct Losses {
  uint64_t step = 0;
  double values = 0, intended = 0;
  std::vector<double> lost;  // by strength
};
std::optional<LossSample> sample_of(const Losses& message);  // nothing: it is no such thing
struct ProfileAsk {
  uint64_t number = 0;  // of the question
};
struct ProfileAnswerMessage {
  uint64_t number = 0;
  StatusCode code = StatusCode::kOK;  // not OK: text says why there is no profile
  std::string text;
  std::vector<std::byte> profile;  // proto/wire/machine_profile.h
};
struct Bye {};

using ControlMessage =
    std::variant<Join, Joined, Table, Prepare, Prepared, Decided, Failure, CallFailure, Report,
                 Start, PolicyAsk, PolicyAnswerMessage, ReplicaHash, Bye, Flush, Left, Losses,
                 ProfileAsk, ProfileAnswerMessage>;

// To as many as an answer holds; the last one says how many more there are.
void cut_warnings(std::vector<std::string>& warnings);

std::vector<std::byte> encode_control(const ControlMessage& message);
Result<ControlMessage> decode_control(std::span<const std::byte> body);

}  // namespace cgx::scheduler
