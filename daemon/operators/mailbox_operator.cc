#include "daemon/operators/mailbox_operator.h"

#include <algorithm>
#include <atomic>
#include <future>

#include "daemon/base/clock.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kSliceNs = 50 * kMillisecond;  // whether it is still waited for

struct Question {
  const char* what;
  const char* if_begun = "";  // said where no answer came in time, and it may still be carried out
  const char* if_not = "";
};

constexpr Question kPolicyChange{
    "policy change", "; it may still come into force: look before you try again (policy history)",
    "; nothing was changed"};

template <typename T>
bool await(const std::future<T>& answer, const Patience& patience) {
  const uint64_t begin_ns = monotonic_ns();
  for (uint64_t waited_ns = 0; waited_ns < patience.timeout_ns;
       waited_ns = monotonic_ns() - begin_ns) {
    const auto slice =
        std::chrono::nanoseconds(std::min(kSliceNs, patience.timeout_ns - waited_ns));
    if (answer.wait_for(slice) == std::future_status::ready) return true;
    if (patience.waits && !patience.waits()) return false;
  }
  return false;
}

// The promise is shared with the engine, which may answer after the caller has given up. Whoever is
// first, the engine that begins or the caller who gives up, has decided whether it is done at all.
template <typename T, typename Task>
Result<T> ask_engine(DataAgent& data, const Patience& patience, const Question& question,
                     Task task) {
  const std::string what = question.what;
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> answer = promise->get_future();
  const auto decided = std::make_shared<std::atomic<bool>>(false);
  const bool taken =
      data.run([promise, decided, task = std::move(task)](scheduler::Engine& engine) mutable {
        if (!decided->exchange(true)) task(engine, promise);
      });
  if (!taken) return Status(StatusCode::kBUSY, what + ": the daemon is busy or stopping");
  if (await(answer, patience)) {
    try {
      return answer.get();
    } catch (const std::future_error&) {  // dropped unanswered: the engine has ended
      return Status(StatusCode::kCANCELLED, what + ": the daemon is stopping");
    }
  }
  return Status(StatusCode::kTIMED_OUT,
                what + ": no answer within " + std::to_string(patience.timeout_ns / kMillisecond) +
                    " ms" + (decided->exchange(true) ? question.if_begun : question.if_not));
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
                                                              const Patience& patience) {
  scheduler::PolicyRequest request{.job = target.job,
                                   .communicator = target.communicator,
                                   .uid = target.uid,
                                   .policy = policy,
                                   .dry_run = dry_run,
                                   .expected_version = expected_version};
  return ask_engine<scheduler::PolicyChange>(
      data_, patience, dry_run ? Question{"policy check"} : kPolicyChange,
      [request = std::move(request)](scheduler::Engine& engine, auto promise) {
        engine.apply_policy(request, [promise](const Result<scheduler::PolicyChange>& change) {
          promise->set_value(change);
        });
      });
}

Result<scheduler::Explanation> MailboxOperator::explain(const CommunicatorName& target,
                                                        const std::string& tensor,
                                                        const Patience& patience) {
  const scheduler::ExplainRequest request{target.job, target.communicator, target.uid, tensor};
  return ask_engine<scheduler::Explanation>(
      data_, patience, {"what the tensor's choice costs"},
      [request](scheduler::Engine& engine, auto promise) {
        engine.explain(request, [promise](const Result<scheduler::Explanation>& found) {
          promise->set_value(found);
        });
      });
}

Result<scheduler::WhatIf> MailboxOperator::what_if(const CommunicatorName& target,
                                                   const scheduler::Policy& policy,
                                                   uint32_t machines, const Patience& patience) {
  const scheduler::WhatIfRequest request{target.job, target.communicator, target.uid, policy,
                                         machines};
  return ask_engine<scheduler::WhatIf>(
      data_, patience, {"what a step would take"},
      [request](scheduler::Engine& engine, auto promise) {
        engine.what_if(request, [promise](const Result<scheduler::WhatIf>& found) {
          promise->set_value(found);
        });
      });
}

Result<scheduler::JobProfile> MailboxOperator::profile(const CommunicatorName& target,
                                                       const Patience& patience) {
  const scheduler::ProfileRequest request{target.job, target.communicator, target.uid};
  return ask_engine<scheduler::JobProfile>(
      data_, patience, {"what was measured of the job"},
      [request](scheduler::Engine& engine, auto promise) {
        engine.profile(request, [promise](const Result<scheduler::JobProfile>& found) {
          promise->set_value(found);
        });
      });
}

}  // namespace cgx::daemon
