#include "daemon/operators/mailbox_operator.h"

#include <future>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

// The promise is shared with the engine, which may answer after the caller has given up.
template <typename T, typename Task>
Result<T> ask_engine(DataAgent& data, uint64_t timeout_ns, const char* what, Task task) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> answer = promise->get_future();
  const bool taken = data.run([promise, task = std::move(task)](scheduler::Engine& engine) mutable {
    task(engine, promise);
  });
  if (!taken) {
    return Status(StatusCode::kBUSY, std::string(what) + ": the daemon is busy or stopping");
  }
  if (answer.wait_for(std::chrono::nanoseconds(timeout_ns)) == std::future_status::ready) {
    try {
      return answer.get();
    } catch (const std::future_error&) {  // dropped unanswered: the engine has ended
      return Status(StatusCode::kCANCELLED, std::string(what) + ": the daemon is stopping");
    }
  }
  return Status(StatusCode::kTIMED_OUT, std::string(what) + ": no answer within " +
                                            std::to_string(timeout_ns / kMillisecond) + " ms");
}

}  // namespace

Result<scheduler::Snapshot> MailboxOperator::snapshot(uint64_t timeout_ns) {
  CGX_ASSIGN_OR_RETURN(const SnapshotBoard::Shown shown, data_.snapshots().ask(timeout_ns));
  scheduler::Snapshot snapshot = *shown;
  for (scheduler::CommunicatorSnapshot& one : snapshot.communicators) show_plan(one);
  for (scheduler::Share& share : shares_.shown()) snapshot.shares.push_back(std::move(share));
  return snapshot;
}

Result<scheduler::RecorderReader::Reading> MailboxOperator::events(uint64_t from) {
  if (recorder_.empty()) {
    return Status(StatusCode::kUNAVAILABLE,
                  "nothing is recorded: recorder.events is 0 in this daemon's configuration");
  }
  CGX_ASSIGN_OR_RETURN(const scheduler::RecorderReader reader,
                       scheduler::RecorderReader::create(recorder_));
  return reader.read(from);
}

Result<scheduler::PolicyChange> MailboxOperator::apply_policy(const CommunicatorName& target,
                                                              const scheduler::Policy& policy,
                                                              bool dry_run,
                                                              uint64_t expected_version,
                                                              uint64_t timeout_ns) {
  scheduler::PolicyRequest request{.job = target.job,
                                   .communicator = target.communicator,
                                   .uid = target.uid,
                                   .policy = policy,
                                   .dry_run = dry_run,
                                   .expected_version = expected_version};
  return ask_engine<scheduler::PolicyChange>(
      data_, timeout_ns, "policy change",
      [request = std::move(request)](scheduler::Engine& engine, auto promise) {
        engine.apply_policy(request, [promise](const Result<scheduler::PolicyChange>& change) {
          promise->set_value(change);
        });
      });
}

Result<scheduler::Explanation> MailboxOperator::explain(const CommunicatorName& target,
                                                        const std::string& tensor,
                                                        uint64_t timeout_ns) {
  const scheduler::ExplainRequest request{target.job, target.communicator, target.uid, tensor};
  return ask_engine<scheduler::Explanation>(
      data_, timeout_ns, "what the tensor's choice costs",
      [request](scheduler::Engine& engine, auto promise) {
        engine.explain(request, [promise](const Result<scheduler::Explanation>& found) {
          promise->set_value(found);
        });
      });
}

Result<scheduler::WhatIf> MailboxOperator::what_if(const CommunicatorName& target,
                                                   const scheduler::Policy& policy,
                                                   uint32_t machines, uint64_t timeout_ns) {
  const scheduler::WhatIfRequest request{target.job, target.communicator, target.uid, policy,
                                         machines};
  return ask_engine<scheduler::WhatIf>(
      data_, timeout_ns, "what a step would take",
      [request](scheduler::Engine& engine, auto promise) {
        engine.what_if(request, [promise](const Result<scheduler::WhatIf>& found) {
          promise->set_value(found);
        });
      });
}

Result<scheduler::JobProfile> MailboxOperator::profile(const CommunicatorName& target,
                                                       uint64_t timeout_ns) {
  const scheduler::ProfileRequest request{target.job, target.communicator, target.uid};
  return ask_engine<scheduler::JobProfile>(
      data_, timeout_ns, "what was measured of the job",
      [request](scheduler::Engine& engine, auto promise) {
        engine.profile(request, [promise](const Result<scheduler::JobProfile>& found) {
          promise->set_value(found);
        });
      });
}

}  // namespace cgx::daemon
