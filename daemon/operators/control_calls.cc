#include "daemon/operators/control_calls.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "config/text.h"
#include "daemon/base/clock.h"
#include "daemon/operators/events_view.h"
#include "daemon/operators/policy_view.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kLookNs = 100 * kMillisecond;  // whether a caller who waits has gone
constexpr uint32_t kWaitingMax = 4;               // callers of one user who wait for a drain

grpc::StatusCode grpc_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOK:
      return grpc::StatusCode::OK;
    case StatusCode::kCANCELLED:
      return grpc::StatusCode::CANCELLED;
    case StatusCode::kINVALID_ARGUMENT:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case StatusCode::kNOT_FOUND:
      return grpc::StatusCode::NOT_FOUND;
    case StatusCode::kALREADY_EXISTS:
      return grpc::StatusCode::ALREADY_EXISTS;
    case StatusCode::kPERMISSION_DENIED:
    case StatusCode::kAUTH_FAILED:
      return grpc::StatusCode::PERMISSION_DENIED;
    case StatusCode::kRESOURCE_EXHAUSTED:
    case StatusCode::kARENA_FULL:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case StatusCode::kUNIMPLEMENTED:
    case StatusCode::kVERSION_MISMATCH:
      return grpc::StatusCode::UNIMPLEMENTED;
    case StatusCode::kTIMED_OUT:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case StatusCode::kBUSY:
    case StatusCode::kSUPERSEDED:
      return grpc::StatusCode::ABORTED;
    case StatusCode::kINTERNAL:
      return grpc::StatusCode::INTERNAL;
    case StatusCode::kCORRUPT:
    case StatusCode::kREPLICA_DIVERGED:
    case StatusCode::kSTEP_LOST:
      return grpc::StatusCode::DATA_LOSS;
    case StatusCode::kUNAVAILABLE:  // gRPC's own UNAVAILABLE means: no daemon there
    case StatusCode::kPROTOCOL_ERROR:
    case StatusCode::kSTEP_OPEN:
    case StatusCode::kSTEP_ORDER:
    case StatusCode::kSTEP_ABANDONED:
    case StatusCode::kSTEP_FAILED:
    case StatusCode::kNOT_COMMITTED:
    case StatusCode::kMISMATCH:
    case StatusCode::kDEVICE_LOST:
    case StatusCode::kRANK_LOST:
    case StatusCode::kPEER_LOST:
    case StatusCode::kDAEMON_LOST:
    case StatusCode::kOP_STALLED:
    case StatusCode::kFORKED:
      return grpc::StatusCode::FAILED_PRECONDITION;
  }
  return grpc::StatusCode::UNKNOWN;
}

grpc::Status to_grpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {grpc_code(status.code()), config::plain_text(status.to_string())};
}

// The caller's deadline or ours, whichever is sooner.
uint64_t time_left_ns(const grpc::ServerContext& context, uint64_t limit_ns) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  if (deadline <= now) return 0;
  if (deadline - now > std::chrono::nanoseconds(limit_ns)) return limit_ns;
  return static_cast<uint64_t>(std::chrono::nanoseconds(deadline - now).count());
}

ClockPair clocks_now() {
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  const auto unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count();
  return {monotonic_ns(), static_cast<uint64_t>(unix_ns)};
}

AuditRecord audit_record(const Caller& caller, const v1::ChangePolicyRequest& request,
                         const Status& result, const v1::PolicyChange& change) {
  AuditRecord record{.of_operator = caller.is_operator,
                     .caller = caller.name,
                     .action = "policy apply",
                     .reason = request.reason(),
                     .result = result};
  const bool resolved = !change.job().empty();
  record.job = resolved ? change.job() : request.target().job();
  record.communicator = resolved ? change.communicator() : request.target().communicator();
  record.policy_version = change.policy_version();
  record.epoch = change.epoch();
  record.switch_step = change.switch_step();
  for (const v1::Difference& one : change.differences()) {
    record.changes.push_back(one.key() + ": " + one.from() + " -> " + one.to());
  }
  return record;
}

// Completes what the request says from the configured policy.
template <typename Request>
Result<CheckedPolicy> complete(const Request& request, const CommunicatorSnapshot& communicator) {
  CGX_ASSIGN_OR_RETURN(const v1::Policy filled, fill_from(configured_policy(communicator),
                                                          request.policy(), request.no_rules()));
  return check_policy(filled);
}

Status check_loss(const v1::PolicyEffect& effect, bool allowed) {
  const std::string loss = loss_text(effect);
  if (allowed || loss.empty()) return {};
  return invalid_argument("this policy " + loss + "; allow it with --lossy");
}

Status check_version(const CommunicatorSnapshot& communicator, uint64_t expected) {
  if (expected == 0 || expected == communicator.policy_version) return {};
  return {StatusCode::kBUSY,
          "the policy is at version " + std::to_string(communicator.policy_version) + ", not " +
              std::to_string(expected) + ": it was changed meanwhile; look at it and try again"};
}

std::string draining_text(const Draining& draining, uint64_t now_ns) {
  const uint64_t left_ns = draining.end_ns - std::min(draining.end_ns, now_ns);
  return "the daemon has been stopping for " +
         std::to_string((now_ns - draining.begun_ns) / kSecond) + " s (" +
         config::plain_text(draining.why) + "); what has not left in " +
         std::to_string(left_ns / kSecond) + " s is cut off";
}

}  // namespace

// One call: who, until when, and the snapshot it works on.
class ControlCalls::Call {
 public:
  Call(const ControlCalls& calls, const grpc::ServerContext& grpc, uint64_t limit_ns)
      : calls_(calls), grpc_(grpc), limit_ns_(limit_ns), caller_(calls.who_calls_(grpc)) {
    calls_.in_flight_.fetch_add(1);
  }
  ~Call() { calls_.in_flight_.fetch_sub(1); }

  const Caller& caller() const { return caller_; }
  const DaemonFacts& facts() const { return calls_.context_.facts; }
  uint64_t time_left() const { return time_left_ns(grpc_, limit_ns_); }
  // Whether the caller still waits, from now on.
  StillWaits patience() const {
    return [this, end_ns = monotonic_ns() + time_left()] {
      return !grpc_.IsCancelled() && monotonic_ns() < end_ns;
    };
  }
  Patience limit() const {
    return {time_left(), [this] { return !grpc_.IsCancelled(); }};
  }
  Result<Snapshot> snapshot() const {
    return calls_.context_.port.snapshot(std::min(time_left(), calls_.context_.read_timeout_ns));
  }

 private:
  const ControlCalls& calls_;
  const grpc::ServerContext& grpc_;
  const uint64_t limit_ns_;
  const Caller caller_;
};

scheduler::PolicyNote ControlCalls::note_of(const Call& call,
                                            const v1::ChangePolicyRequest& request) {
  return {.by = call.caller().name + " on " + call.facts().instance,
          .reason = request.reason().substr(0, kAuditReasonBytes),
          .unix_ns = clocks_now().unix_ns,
          .keep = !request.target().job().empty()};
}

template <typename Act>
grpc::Status ControlCalls::reading(const grpc::ServerContext& grpc, Act act) const {
  const Call call(*this, grpc, context_.read_timeout_ns);
  const Result<Snapshot> snapshot = call.snapshot();
  return to_grpc(snapshot.ok() ? act(call, *snapshot) : snapshot.status());
}

grpc::Status ControlCalls::GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                                     v1::DaemonStatus* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) -> Status {
    *out = status_of(snapshot, context_.facts, call.caller());
    const auto draining = context_.stop != nullptr ? context_.stop->draining() : std::nullopt;
    if (draining) out->add_warnings(draining_text(*draining, monotonic_ns()));
    return {};
  });
}

grpc::Status ControlCalls::ListJobs(grpc::ServerContext* context,
                                    const v1::ListJobsRequest* request, v1::JobList* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) {
    return list_jobs(call, snapshot, *request, *out);
  });
}

Status ControlCalls::list_jobs(const Call& call, const Snapshot& snapshot,
                               const v1::ListJobsRequest& request, v1::JobList& list) const {
  CGX_ASSIGN_OR_RETURN(list, jobs_of(snapshot, request.target(), call.caller()));
  if (!request.all()) return {};
  for (v1::Communicator& one : *list.mutable_communicators()) {
    one.set_machine(call.facts().instance);
  }
  CGX_ASSIGN_OR_RETURN(const std::vector<const CommunicatorSnapshot*> found,
                       select_all(snapshot, request.target(), call.caller()));
  const FleetQuestion question{.for_operator = call.caller().is_operator, .waits = call.patience()};
  std::set<std::pair<std::string, uint32_t>> jobs;
  for (const CommunicatorSnapshot* one : found) {
    if (!context_.fleet || !jobs.emplace(one->job, one->uid).second) continue;
    FleetAnswer others = context_.fleet(snapshot, *one, question);
    for (v1::Communicator& other : others.communicators) {
      const std::string& name = request.target().communicator();
      if (name.empty() || name == other.name()) *list.add_communicators() = std::move(other);
    }
    for (v1::Finding& finding : others.findings) *list.add_findings() = std::move(finding);
  }
  return {};
}

grpc::Status ControlCalls::ListTensors(grpc::ServerContext* context,
                                       const v1::ListTensorsRequest* request, v1::TensorList* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) {
    return list_tensors(call, snapshot, *request, *out);
  });
}

Status ControlCalls::list_tensors(const Call& call, const Snapshot& snapshot,
                                  const v1::ListTensorsRequest& request,
                                  v1::TensorList& list) const {
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CommunicatorSnapshot shown = *current;
  show_reasons(shown);
  list = tensors_of(shown);
  if (!request.all()) return {};
  list.set_machine(call.facts().instance);
  if (!context_.fleet) return {};
  FleetAnswer others = context_.fleet(
      snapshot, shown,
      {.tensors = true, .for_operator = call.caller().is_operator, .waits = call.patience()});
  for (v1::TensorList& other : others.tensors) {
    if (other.communicator() == list.communicator()) *list.add_others() = std::move(other);
  }
  for (v1::Finding& finding : others.findings) *list.add_findings() = std::move(finding);
  return {};
}

grpc::Status ControlCalls::ListPeers(grpc::ServerContext* context,
                                     const v1::ListPeersRequest* request, v1::PeerList* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) -> Status {
    CGX_ASSIGN_OR_RETURN(*out, peers_of(snapshot, request->target(), call.caller()));
    return {};
  });
}

grpc::Status ControlCalls::ListCodecs(grpc::ServerContext*, const v1::ListCodecsRequest*,
                                      v1::CodecList* out) {
  *out = codec_list();
  return grpc::Status::OK;
}

grpc::Status ControlCalls::GetCounters(grpc::ServerContext* context, const v1::GetCountersRequest*,
                                       v1::CounterList* out) {
  return reading(*context, [&](const Call&, const Snapshot& snapshot) -> Status {
    *out = counters_of(snapshot);
    return {};
  });
}

// Whatever the recorder knows of was made before the snapshot that names it.
grpc::Status ControlCalls::ListEvents(grpc::ServerContext* context,
                                      const v1::ListEventsRequest* request, v1::EventList* out) {
  const Call call(*this, *context, context_.read_timeout_ns);
  const Result<scheduler::RecorderReader::Reading> reading = context_.port.events(request->from());
  if (!reading.ok()) return to_grpc(reading.status());
  const Result<Snapshot> snapshot = call.snapshot();
  if (!snapshot.ok()) return to_grpc(snapshot.status());
  Result<v1::EventList> list =
      events_of(*reading, *snapshot, *request, call.caller(), clocks_now());
  if (!list.ok()) return to_grpc(list.status());
  *out = *std::move(list);
  return grpc::Status::OK;
}

grpc::Status ControlCalls::GetPolicy(grpc::ServerContext* context,
                                     const v1::GetPolicyRequest* request, v1::CurrentPolicy* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) -> Status {
    CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                         select(snapshot, request->target(), call.caller()));
    *out = policy_of(*current);
    return {};
  });
}

grpc::Status ControlCalls::DiffPolicy(grpc::ServerContext* context,
                                      const v1::ChangePolicyRequest* request, v1::PolicyDiff* out) {
  const Call call(*this, *context, context_.read_timeout_ns);
  return to_grpc(compare(call, *request, *out));
}

Status ControlCalls::compare(const Call& call, const v1::ChangePolicyRequest& request,
                             v1::PolicyDiff& answer) const {
  CGX_ASSIGN_OR_RETURN(const Snapshot snapshot, call.snapshot());
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CGX_ASSIGN_OR_RETURN(const CheckedPolicy wanted, complete(request, *current));
  const v1::CurrentPolicy before = policy_of(*current);
  answer.set_job(before.job());
  answer.set_communicator(before.communicator());
  answer.set_version(before.version());
  add_differences(before.policy(), to_message(wanted.plain), *answer.mutable_differences());
  CGX_ASSIGN_OR_RETURN(*answer.mutable_effect(),
                       effect_of(*current, wanted.plain, call.patience()));
  return {};
}

grpc::Status ControlCalls::ExplainTensor(grpc::ServerContext* context,
                                         const v1::ExplainTensorRequest* request,
                                         v1::TensorExplanation* out) {
  const Call call(*this, *context, context_.change_timeout_ns);
  return to_grpc(explain(call, *request, *out));
}

// Why it travels so is known in any case; what that costs where it was measured.
Status ControlCalls::explain(const Call& call, const v1::ExplainTensorRequest& request,
                             v1::TensorExplanation& answer) const {
  CGX_ASSIGN_OR_RETURN(const Snapshot snapshot, call.snapshot());
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CommunicatorSnapshot shown = *current;
  show_reasons(shown);
  std::erase_if(shown.tensors, [&](const auto& each) { return each.name != request.tensor(); });
  if (shown.tensors.empty()) {
    return {StatusCode::kNOT_FOUND, "no tensor " + request.tensor() + " among the " +
                                        std::to_string(current->tensors.size()) +
                                        " of the communicator; cgxctl tensors lists them"};
  }
  *answer.mutable_tensor() = tensors_of(shown).tensors(0);
  const Result<scheduler::Explanation> priced = context_.port.explain(
      {current->job, current->name, current->uid}, request.tensor(), call.limit());
  priced.ok() ? add_prices(*priced, answer)
              : answer.set_unpriced(config::plain_text(priced.status().message()));
  return {};
}

grpc::Status ControlCalls::SimulatePlan(grpc::ServerContext* context,
                                        const v1::SimulatePlanRequest* request,
                                        v1::SimulatedPlan* out) {
  const Call call(*this, *context, context_.change_timeout_ns);
  return to_grpc(simulate(call, *request, *out));
}

Status ControlCalls::simulate(const Call& call, const v1::SimulatePlanRequest& request,
                              v1::SimulatedPlan& answer) const {
  CGX_ASSIGN_OR_RETURN(const Snapshot snapshot, call.snapshot());
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CheckedPolicy wanted{.message = {}, .plain = current->policy, .warnings = {}};
  if (request.has_policy() || request.no_rules()) {
    CGX_ASSIGN_OR_RETURN(wanted, complete(request, *current));
  }
  constexpr uint32_t kMachinesMax = 4096;
  if (request.machines() > kMachinesMax || request.machines() == 1) {
    return invalid_argument("machines: " + std::to_string(request.machines()) +
                            " is not between 2 and " + std::to_string(kMachinesMax));
  }
  CGX_ASSIGN_OR_RETURN(const scheduler::WhatIf found,
                       context_.port.what_if({current->job, current->name, current->uid},
                                             wanted.plain, request.machines(), call.limit()));
  answer = simulated_of(found);
  answer.set_job(config::plain_text(current->job));
  answer.set_communicator(config::plain_text(current->name));
  answer.set_machines(request.machines() == 0 ? current->machines : request.machines());
  return {};
}

grpc::Status ControlCalls::GetJobProfile(grpc::ServerContext* context,
                                         const v1::GetJobProfileRequest* request,
                                         v1::JobProfile* out) {
  const Call call(*this, *context, context_.change_timeout_ns);
  return to_grpc(profile(call, *request, *out));
}

Status ControlCalls::profile(const Call& call, const v1::GetJobProfileRequest& request,
                             v1::JobProfile& answer) const {
  CGX_ASSIGN_OR_RETURN(const Snapshot snapshot, call.snapshot());
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CGX_ASSIGN_OR_RETURN(
      const scheduler::JobProfile found,
      context_.port.profile({current->job, current->name, current->uid}, call.limit()));
  answer = profile_of(found);
  answer.set_job(config::plain_text(current->job));
  answer.set_communicator(config::plain_text(current->name));
  return {};
}

grpc::Status ControlCalls::GetPolicyHistory(grpc::ServerContext* context,
                                            const v1::GetPolicyRequest* request,
                                            v1::PolicyHistory* out) {
  return reading(*context, [&](const Call& call, const Snapshot& snapshot) -> Status {
    CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                         select(snapshot, request->target(), call.caller()));
    *out = history_of(*current);
    return {};
  });
}

grpc::Status ControlCalls::Diagnose(grpc::ServerContext* context,
                                    const v1::DiagnoseRequest* request, v1::Diagnosis* out) {
  const Call call(*this, *context, context_.read_timeout_ns);
  if (!context_.diagnose) {
    return to_grpc(invalid_argument("this daemon serves one machine only (mesh.listen is empty)"));
  }
  *out = context_.diagnose(*request, call.caller().is_operator, call.patience());
  return grpc::Status::OK;
}

Status ControlCalls::change(const Call& call, const v1::ChangePolicyRequest& request, bool dry_run,
                            v1::PolicyChange& answer) const {
  CGX_ASSIGN_OR_RETURN(const Snapshot snapshot, call.snapshot());
  CGX_ASSIGN_OR_RETURN(const CommunicatorSnapshot* current,
                       select(snapshot, request.target(), call.caller()));
  CGX_ASSIGN_OR_RETURN(CheckedPolicy wanted, complete(request, *current));
  wanted.plain.note = note_of(call, request);
  const v1::CurrentPolicy before = policy_of(*current);
  answer.set_job(before.job());
  answer.set_communicator(before.communicator());
  add_differences(before.policy(), to_message(wanted.plain), *answer.mutable_differences());
  CGX_RETURN_IF_ERROR(check_version(*current, request.expected_version()));
  CGX_ASSIGN_OR_RETURN(*answer.mutable_effect(),
                       effect_of(*current, wanted.plain, call.patience()));
  if (!dry_run) CGX_RETURN_IF_ERROR(check_loss(answer.effect(), request.lossy()));

  const CommunicatorName name{current->job, current->name, current->uid};
  CGX_ASSIGN_OR_RETURN(const scheduler::PolicyChange change,
                       context_.port.apply_policy(name, wanted.plain, dry_run,
                                                  request.expected_version(), call.limit()));
  answer.set_policy_version(change.policy_version);
  answer.set_epoch(change.epoch);
  answer.set_switch_step(change.switch_step);
  answer.set_reserved_bytes(change.reserved_bytes);
  // The coordinator's, of another version perhaps, are about the same codecs.
  std::vector<std::string> warnings = std::move(wanted.warnings);
  warnings.insert(warnings.end(), change.warnings.begin(), change.warnings.end());
  std::sort(warnings.begin(), warnings.end());
  warnings.erase(std::unique(warnings.begin(), warnings.end()), warnings.end());
  for (const std::string& warning : warnings) answer.add_warnings(config::plain_text(warning));
  return {};
}

grpc::Status ControlCalls::CheckPolicy(grpc::ServerContext* context,
                                       const v1::ChangePolicyRequest* request,
                                       v1::PolicyChange* out) {
  const Call call(*this, *context, context_.change_timeout_ns);
  return to_grpc(change(call, *request, /*dry_run=*/true, *out));
}

grpc::Status ControlCalls::ApplyPolicy(grpc::ServerContext* context,
                                       const v1::ChangePolicyRequest* request,
                                       v1::PolicyChange* out) {
  const Call call(*this, *context, context_.change_timeout_ns);
  const Status room = context_.audit.make_room(call.caller().is_operator);
  if (!room.ok()) {
    return to_grpc({room.code(), "nothing was changed: " + room.message()});
  }
  const Status status = change(call, *request, /*dry_run=*/false, *out);
  const Status written = context_.audit.write(audit_record(call.caller(), *request, status, *out));
  if (status.ok() && !written.ok()) {
    return to_grpc({StatusCode::kINTERNAL, "the change is in force, but " + written.message()});
  }
  return to_grpc(status);
}

// Unless the caller goes; and a few at most, because each holds a thread.
void ControlCalls::await_drain(const grpc::ServerContext& context, const v1::DrainRequest& request,
                               v1::DrainAnswer& out) const {
  const uint64_t wait_ns = request.has_wait_ms() ? request.wait_ms() * kMillisecond : kNever / 2;
  const uint64_t end_ns = monotonic_ns() + wait_ns;
  const auto left_ns = [&] { return end_ns - std::min(end_ns, monotonic_ns()); };
  const bool may_wait = waiting_.fetch_add(1) < kWaitingMax;
  auto names = context_.stop->cut_off(0);
  while (!names && may_wait && left_ns() > 0 && !context.IsCancelled()) {
    names = context_.stop->cut_off(std::min(kLookNs, left_ns()));
  }
  waiting_.fetch_sub(1);
  if (!names) return;
  out.set_drained(true);
  for (const std::string& name : *names) out.add_cut_off(config::plain_text(name));
}

grpc::Status ControlCalls::Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                                 v1::DrainAnswer* out) {
  const Call call(*this, *context, context_.read_timeout_ns);
  const Status room = context_.audit.make_room(call.caller().is_operator);
  if (!room.ok()) return to_grpc({room.code(), "the daemon goes on: " + room.message()});
  Status status;
  if (!call.caller().is_operator || context_.stop == nullptr) {
    status = Status(StatusCode::kPERMISSION_DENIED, "only operators may drain the daemon");
  }
  const Result<Snapshot> snapshot = call.snapshot();
  if (snapshot.ok()) {
    out->set_sessions(static_cast<uint32_t>(snapshot->sessions.size()));
    out->set_communicators(static_cast<uint32_t>(snapshot->communicators.size()));
  }
  const Status written = context_.audit.write({.of_operator = call.caller().is_operator,
                                               .caller = call.caller().name,
                                               .action = "drain",
                                               .job = {},
                                               .communicator = {},
                                               .reason = request->reason(),
                                               .result = status,
                                               .changes = {}});
  if (status.ok() && !written.ok()) {
    status = Status(written.code(), "the daemon goes on: " + written.message());
  }
  if (status.ok()) {
    const std::string reason = config::plain_text(request->reason().substr(0, kAuditReasonBytes));
    StopOrder order{.by = "drain by " + call.caller().name, .failed = false, .limit_ns = {}};
    if (!reason.empty()) order.by += ": " + reason;
    if (request->has_limit_ms()) order.limit_ns = request->limit_ms() * kMillisecond;
    context_.stop->stop(order);
    await_drain(*context, *request, *out);
  }
  return to_grpc(status);
}

}  // namespace cgx::daemon
