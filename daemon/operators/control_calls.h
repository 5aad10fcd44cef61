// The Control RPCs: rights, deadlines, translation; the work is the engine's, behind OperatorPort.
// Thread rule: called by gRPC's threads, any number at once; immutable but for the audit log.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <string>

#include "daemon/base/stop_order.h"
#include "daemon/operators/audit.h"
#include "daemon/operators/caller.h"
#include "daemon/operators/control_view.h"
#include "daemon/operators/operator_port.h"
#include "daemon/policy/policy_message.h"
#include "proto/messages/control.grpc.pb.h"

namespace cgx::daemon {

struct ControlContext {  // shared by all services of the daemon; outlives them
  OperatorPort& port;
  AuditLog& audit;
  DaemonFacts facts;
  Diagnose diagnose;                         // empty: this daemon serves one machine only
  AskFleet fleet;                            // likewise
  StopPort* stop = nullptr;                  // null: nobody may stop this daemon
  uint64_t read_timeout_ns = 5'000'000'000;  // the most a call may take, whatever its deadline
  uint64_t change_timeout_ns = 60'000'000'000;
};

class ControlCalls final : public v1::Control::Service {
 public:
  using WhoCalls = std::function<Caller(const grpc::ServerContext&)>;
  ControlCalls(const ControlContext& context, WhoCalls who_calls)
      : context_(context), who_calls_(std::move(who_calls)) {}

  uint32_t in_flight() const { return in_flight_.load(); }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::DaemonStatus*) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*, v1::JobList*) override;
  grpc::Status ListTensors(grpc::ServerContext*, const v1::ListTensorsRequest*,
                           v1::TensorList*) override;
  grpc::Status ListPeers(grpc::ServerContext*, const v1::ListPeersRequest*, v1::PeerList*) override;
  grpc::Status ListCodecs(grpc::ServerContext*, const v1::ListCodecsRequest*,
                          v1::CodecList*) override;
  grpc::Status GetCounters(grpc::ServerContext*, const v1::GetCountersRequest*,
                           v1::CounterList*) override;
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest*,
                          v1::EventList*) override;
  grpc::Status GetPolicy(grpc::ServerContext*, const v1::GetPolicyRequest*,
                         v1::CurrentPolicy*) override;
  grpc::Status CheckPolicy(grpc::ServerContext*, const v1::ChangePolicyRequest*,
                           v1::PolicyChange*) override;
  grpc::Status DiffPolicy(grpc::ServerContext*, const v1::ChangePolicyRequest*,
                          v1::PolicyDiff*) override;
  grpc::Status ApplyPolicy(grpc::ServerContext*, const v1::ChangePolicyRequest*,
                           v1::PolicyChange*) override;
  grpc::Status ExplainTensor(grpc::ServerContext*, const v1::ExplainTensorRequest*,
                             v1::TensorExplanation*) override;
  grpc::Status GetJobProfile(grpc::ServerContext*, const v1::GetJobProfileRequest*,
                             v1::JobProfile*) override;
  grpc::Status SimulatePlan(grpc::ServerContext*, const v1::SimulatePlanRequest*,
                            v1::SimulatedPlan*) override;
  grpc::Status GetPolicyHistory(grpc::ServerContext*, const v1::GetPolicyRequest*,
                                v1::PolicyHistory*) override;
  grpc::Status Diagnose(grpc::ServerContext*, const v1::DiagnoseRequest*, v1::Diagnosis*) override;
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainAnswer*) override;

 private:
  class Call;
  static scheduler::PolicyNote note_of(const Call& call, const v1::ChangePolicyRequest& request);
  // A call that looks at a snapshot and changes nothing.
  template <typename Act>
  grpc::Status reading(const grpc::ServerContext& grpc, Act act) const;
  Status list_jobs(const Call& call, const Snapshot& snapshot, const v1::ListJobsRequest& request,
                   v1::JobList& list) const;
  Status list_tensors(const Call& call, const Snapshot& snapshot,
                      const v1::ListTensorsRequest& request, v1::TensorList& list) const;
  Status compare(const Call& call, const v1::ChangePolicyRequest& request,
                 v1::PolicyDiff& answer) const;
  Status explain(const Call& call, const v1::ExplainTensorRequest& request,
                 v1::TensorExplanation& answer) const;
  Status profile(const Call& call, const v1::GetJobProfileRequest& request,
                 v1::JobProfile& answer) const;
  Status simulate(const Call& call, const v1::SimulatePlanRequest& request,
                  v1::SimulatedPlan& answer) const;
  void await_drain(const grpc::ServerContext& context, const v1::DrainRequest& request,
                   v1::DrainAnswer& out) const;
  Status change(const Call& call, const v1::ChangePolicyRequest& request, bool dry_run,
                v1::PolicyChange& answer) const;

  const ControlContext& context_;
  const WhoCalls who_calls_;
  mutable std::atomic<uint32_t> in_flight_{0}, waiting_{0};  // waiting: for a drain's end
};

}  // namespace cgx::daemon
