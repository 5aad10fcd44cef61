// Communicator, policies: asked of any machine, decided by the coordinator, in force everywhere
// from the same step on.
#include "scheduler/communicator.h"
#include "scheduler/planner.h"

namespace cgx::scheduler {

void Communicator::apply_policy(const Policy& policy, bool dry_run, PolicyAnswer answer) {
  if (state_ != State::kRunning) {
    return answer(Status(StatusCode::kNOT_COMMITTED,
                         members_.title() + " is " + state_name(state_) +
                             "; a policy can be applied once its tensors are committed"));
  }
  if (!members_.coordinator()) {
    const uint64_t ticket = next_ticket_++;
    tickets_[ticket] = {std::move(answer),
                        services_.now_ns() + 2 * services_.options().timeouts.prepare_ns};
    return send_control(0, PolicyAsk{ticket, dry_run, policy});
  }
  const uint64_t version = policy_version_ + 1;
  std::vector<uint32_t> order;
  for (const Group& group : steps_.plan()->plan.groups) {
    for (const Segment& segment : group.segments) order.push_back(segment.tensor);
  }
  Result<Plan> plan = make_plan({*table_, policy, version, agreement_.next_epoch(), order});
  if (!plan.ok()) return answer(plan.status());
  Result<PlanAgreement::PlanPtr> prepared = prepare_plan(*plan, policy);
  if (!prepared.ok()) return answer(prepared.status());
  std::vector<std::string> warnings;
  const auto check = [&](const CodecSpec& spec) {
    std::string warning;
    const Status status = kernels::check_policy(spec, &warning);
    if (!warning.empty()) warnings.push_back(warning);
    return status;
  };
  Status checked = check(policy.default_codec);
  for (const PolicyRule& rule : policy.rules) {
    if (checked.ok()) checked = check(rule.codec);
  }
  if (!checked.ok()) return answer(checked);
  agreement_.propose(PlanPurpose::kPolicy, dry_run, *prepared,
                     services_.now_ns() + services_.options().timeouts.prepare_ns, 0,
                     [this, policy, dry_run, version, warnings,
                      answer = std::move(answer)](const Result<PlanAgreement::Outcome>& outcome) {
                       if (!outcome.ok()) return answer(outcome.status());
                       if (!dry_run) {
                         policy_ = policy;
                         policy_version_ = version;
                         count(Counter::kpolicy_changes, 1);
                       }
                       answer(PolicyChange{version, outcome->plan->plan.epoch, outcome->switch_step,
                                           outcome->plan->reserved_bytes, warnings});
                     });
}

void Communicator::handle(uint32_t machine, const PolicyAsk& message) {
  if (!members_.coordinator()) return;
  apply_policy(message.policy, message.dry_run,
               [this, machine, ticket = message.ticket](const Result<PolicyChange>& change) {
                 PolicyAnswerMessage answer{.ticket = ticket,
                                            .code = change.status().code(),
                                            .text = change.status().message()};
                 if (change.ok()) {
                   answer.policy_version = change->policy_version;
                   answer.epoch = change->epoch;
                   answer.switch_step = change->switch_step;
                   answer.reserved_bytes = change->reserved_bytes;
                   answer.warnings = change->warnings;
                 }
                 send_control(machine, answer);
               });
}

void Communicator::handle(uint32_t machine, const PolicyAnswerMessage& message) {
  const auto found = machine == 0 ? tickets_.find(message.ticket) : tickets_.end();
  if (found == tickets_.end()) return;
  const PolicyAnswer answer = std::move(found->second.answer);
  tickets_.erase(found);
  if (message.code != StatusCode::kOK) return answer(Status(message.code, message.text));
  answer(PolicyChange{message.policy_version, message.epoch, message.switch_step,
                      message.reserved_bytes, message.warnings});
}

}  // namespace cgx::scheduler
