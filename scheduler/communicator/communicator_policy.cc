// Communicator, policies: asked of any machine, decided by the coordinator, in force everywhere
// from the same step on. The last operator's word wins; a commit goes first.
#include "scheduler/communicator/communicator.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/sound_policy.h"

namespace cgx::scheduler {
namespace {

std::vector<uint32_t> order_of(const Plan& plan) {
  std::vector<uint32_t> order;
  for (const Group& group : plan.groups) {
    for (const Segment& segment : group.segments) {
      if (segment.first_bucket == 0) order.push_back(segment.tensor);
    }
  }
  return order;
}

Status check_codecs(const Policy& policy, std::vector<std::string>& warnings) {
  CGX_RETURN_IF_ERROR(check_sound(policy));
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
  return checked.ok() ? check_rack_codec(policy, warnings, strengths_of(policy)) : checked;
}

PolicyChange change_of(const PlanAgreement::Outcome& outcome,
                       const std::vector<std::string>& warnings) {
  const PreparedPlan& plan = *outcome.plan;
  return {plan.plan.policy_version, plan.plan.epoch, outcome.switch_step, plan.needed_bytes(),
          warnings};
}

}  // namespace

// The configuration's is version 1; what an operator gave the job's name since is the second.
void Communicator::begin_with_policy() {
  if (!members_.coordinator()) return;
  const std::optional<Policy> kept =
      port_.kept_policies().find({members_.uid, members_.job, members_.name});
  if (!kept || same_wish(*kept, desk_.configured())) return;
  desk_.adopt(*kept, 2);
  port_.note(EventLevel::kInfo, "communicator begins with the policy kept for its name",
             {{"job", members_.job}, {"communicator", members_.name}, {"by", kept->note.by}});
}

void Communicator::took_force(const PreparedPlan& plan, uint64_t step) {
  const uint64_t version = plan.plan.policy_version;
  const PolicyVersion in_force = PolicyVersion{version, plan.plan.epoch, step, plan.policy};
  if (!desk_.took_force(in_force) || version == 1) return;
  keep_for_the_name(plan.policy);
  const PolicyNote& note = plan.policy.note;
  port_.note(EventLevel::kInfo, "policy is in force",
             {{"job", members_.job},
              {"communicator", members_.name},
              {"version", version},
              {"epoch", plan.plan.epoch},
              {"step", step},
              {"by", note.by.empty() ? "a plan history" : note.by},
              {"reason", note.reason}});
}

// On every machine: any of them may coordinate the job's next communicator.
void Communicator::keep_for_the_name(const Policy& policy) {
  if (!policy.note.keep) return;
  const KeptFor name{members_.uid, members_.job, members_.name};
  if (same_wish(policy, desk_.configured())) return port_.kept_policies().forget(name);
  const std::optional<KeptFor> lost = port_.kept_policies().keep(name, policy);
  if (lost) note_forgotten("a policy kept for a name is forgotten, too many are kept", *lost);
}

void Communicator::note_forgotten(std::string_view text, const KeptFor& whose) {
  port_.note(EventLevel::kWarning, text,
             {{"job", whose.job}, {"communicator", whose.communicator}, {"uid", whose.uid}});
}

std::vector<uint32_t> Communicator::running_order() const {
  return order_of(steps_.plan()->plan);
}

// Another plan under the same policy, which this daemon has thought of.
PlanQuestion Communicator::question_of_own(uint64_t epoch, std::vector<uint32_t> order,
                                           PlanOrigin origin) const {
  return {.table = table_,
          .policy = desk_.policy(),
          .epoch = epoch,
          .policy_version = desk_.version(),
          .order = std::move(order),
          .ceilings = ceilings_.ceilings(),
          .origin = std::move(origin)};
}

PlanAgreement::Question Communicator::policy_question(const Policy& policy) const {
  return [this, policy](uint64_t epoch) -> Result<PlanQuestion> {
    const PreparedPlan& before = *agreement_.newest_agreed(steps_.plan());
    PlanQuestion question{.table = table_,
                          .policy = policy,
                          .epoch = epoch,
                          .policy_version = desk_.version() + 1,
                          .order = order_of(before.plan),
                          .origin = origin_of(policy, before.policy)};
    if (!same_search(policy, before.policy)) return question;
    question.ceilings = ceilings_.ceilings_under(policy, before.plan.table_hash);
    if (policy.mode != PlanMode::kFixed) question.groups = before.plan.groups;
    return question;
  };
}

// A plan from elsewhere that asks for more counts as having asked for what is allowed here.
Status Communicator::check_weight(const Policy& policy) const {
  const uint32_t allowed = port_.options().limits.weight;
  if (policy.weight <= allowed) return {};
  return invalid_argument("weight: " + std::to_string(policy.weight) + " is above limits.weight, " +
                          std::to_string(allowed) + " on " +
                          members_.machine_name(members_.machine) +
                          "; ask for less, or have its operator raise the limit");
}

// Whoever read a policy, changed it and applies it loses nobody else's change.
Status Communicator::check_version(uint64_t expected) const {
  if (expected == 0) return {};
  if (desk_.wish()) {
    return {StatusCode::kBUSY, "another change of " + members_.title() +
                                   " is being agreed on; look at the policy again"};
  }
  if (expected == desk_.version()) return {};
  const bool in_force = steps_.plan()->plan.policy_version == desk_.version();
  return {StatusCode::kBUSY,
          "the policy is at version " + std::to_string(desk_.version()) +
              (in_force ? "" : ", agreed and not in force yet") + ", not " +
              std::to_string(expected) + ": it was changed meanwhile; look at it" +
              (in_force ? "" : " when the next step has begun,") + " and try again"};
}

void Communicator::apply_policy(const Policy& policy, bool dry_run, uint64_t expected_version,
                                PolicyAnswer answer) {
  if (state_ == State::kFailed) return answer(failure_);
  if (Status allowed = check_weight(policy); !allowed.ok()) return answer(allowed);
  if (!steps_.installed()) {
    return answer(Status(StatusCode::kNOT_COMMITTED,
                         members_.title() + " is " + state_name(state_) +
                             "; a policy can be applied once its tensors are committed"));
  }
  if (!members_.coordinator()) {
    uint64_t residuals = 0;
    for (const TensorDesc& tensor : *table_) residuals += Residuals::bytes_of(tensor);
    const uint64_t ticket =
        desk_.expect(std::move(answer), port_.now_ns() + PlanAgreement::making_ns(residuals) +
                                            2 * port_.options().timeouts.prepare_ns);
    return send_control(0, PolicyAsk{ticket, dry_run, expected_version, policy});
  }
  if (const Status same = check_version(expected_version); !same.ok()) return answer(same);
  std::vector<std::string> warnings;
  const Status checked = check_codecs(policy, warnings);
  if (!checked.ok()) return answer(checked);
  if (replay_.on()) {  // a dry run, too, would take the number of one of its plans
    return answer(Status(StatusCode::kBUSY,
                         members_.title() + " repeats a plan history (cgxd --replay-plans)"));
  }
  if (dry_run) return try_policy(policy, std::move(warnings), std::move(answer));
  if (const std::optional<PolicyDesk::Wish> earlier = desk_.take_wish()) {
    const Status why(StatusCode::kSUPERSEDED,
                     "another policy was applied to " + members_.title() + " meanwhile");
    agreement_.withdraw(PlanPurpose::kPolicy, why);
    earlier->answer(why);
  }
  desk_.want({policy, std::move(answer), std::move(warnings)});
  pursue_wish();
}

void Communicator::try_policy(const Policy& policy, std::vector<std::string> warnings,
                              PolicyAnswer answer) {
  constexpr size_t kDryRunsMax = 16;
  if (agreement_.dry_runs() >= kDryRunsMax) {
    return answer(Status(StatusCode::kBUSY, std::to_string(kDryRunsMax) + " policies of " +
                                                members_.title() +
                                                " are being tried already; ask again later"));
  }
  agreement_.propose(PlanPurpose::kPolicy, /*dry_run=*/true, 0, policy_question(policy),
                     [warnings = std::move(warnings),
                      answer = std::move(answer)](const Result<PlanAgreement::Outcome>& outcome) {
                       if (!outcome.ok()) return answer(outcome.status());
                       answer(change_of(*outcome, warnings));
                     });
}

// What an operator wants goes before what this daemon has thought of, and after a commit.
void Communicator::pursue_wish() {
  if (!desk_.wish() || state_ == State::kFailed || agreement_.proposing(PlanPurpose::kPolicy) ||
      agreement_.proposing(PlanPurpose::kCommit)) {
    return;
  }
  agreement_.withdraw(PlanPurpose::kPlanner, {StatusCode::kSUPERSEDED, "an operator's policy"});
  agreement_.propose(PlanPurpose::kPolicy, /*dry_run=*/false, 0,
                     policy_question(desk_.wish()->policy),
                     [this](const Result<PlanAgreement::Outcome>& outcome) {
                       if (!desk_.wish()) return;  // answered already
                       if (outcome.status().code() == StatusCode::kSUPERSEDED)
                         return;  // a commit: after it
                       const PolicyDesk::Wish wish = *desk_.take_wish();
                       if (!outcome.ok()) return wish.answer(outcome.status());
                       desk_.adopt(wish.policy, outcome->plan->plan.policy_version);
                       keep_for_the_name(wish.policy);
                       count(Counter::kpolicy_changes, 1);
                       wish.answer(change_of(*outcome, wish.warnings));
                     });
}

void Communicator::handle(uint32_t machine, const PolicyAsk& message) {
  if (!members_.coordinator()) return;
  apply_policy(message.policy, message.dry_run, message.expected_version,
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
                   cut_warnings(answer.warnings);
                 }
                 send_control(machine, answer);
               });
}

void Communicator::handle(uint32_t machine, const PolicyAnswerMessage& message) {
  const PolicyAnswer answer = machine == 0 ? desk_.take(message.ticket) : PolicyAnswer();
  if (!answer) return;
  if (message.code != StatusCode::kOK) return answer(Status(message.code, message.text));
  answer(PolicyChange{message.policy_version, message.epoch, message.switch_step,
                      message.reserved_bytes, message.warnings});
}

}  // namespace cgx::scheduler
