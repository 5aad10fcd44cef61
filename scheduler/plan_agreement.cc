#include "scheduler/plan_agreement.h"

#include <algorithm>

namespace cgx::scheduler {

void PlanAgreement::propose(PlanPurpose purpose, bool dry_run, const PlanPtr& plan,
                            uint64_t deadline_ns, uint64_t switch_step_of_commit, Answer answer) {
  if (purpose == PlanPurpose::kCommit) announced_.reset();  // made for the table before
  if (proposal_ || announced_) {
    const uint64_t epoch = proposal_ ? proposal_->plan->plan.epoch : announced_epoch();
    answer(Status(StatusCode::kBUSY, "epoch " + std::to_string(epoch) + " of " + members_.title() +
                                         " is still being prepared or has not been reached yet"));
    return;
  }
  highest_epoch_ = std::max(highest_epoch_, plan->plan.epoch);
  proposal_ = Proposal{.purpose = purpose,
                       .dry_run = dry_run,
                       .plan = plan,
                       .deadline_ns = deadline_ns,
                       .commit_step = switch_step_of_commit,
                       .answered = std::vector<bool>(members_.machines()),
                       .reserved_bytes = plan->reserved_bytes,
                       .answer = std::move(answer)};
  proposal_->answered[0] = true;
  const Prepare prepare{purpose, static_cast<uint8_t>(dry_run), plan->policy,
                        encode_plan(plan->plan)};
  for (uint32_t k = 1; k < members_.machines(); ++k) host_.send_control(k, prepare);
  if (members_.machines() == 1) decide();
}

void PlanAgreement::on_prepared(uint32_t machine, const Prepared& prepared) {
  if (!proposal_ || prepared.epoch != proposal_->plan->plan.epoch) return;  // of a dropped one
  if (prepared.code != StatusCode::kOK) {
    drop({prepared.code, members_.machine_name(machine) + " refuses: " + prepared.text});
    return;
  }
  proposal_->answered[machine] = true;
  const auto& answered = proposal_->answered;
  if (std::find(answered.begin(), answered.end(), false) == answered.end()) decide();
}

// Every machine is ready: from here on the switch happens.
void PlanAgreement::decide() {
  Proposal proposal = std::move(*proposal_);
  proposal_.reset();
  if (proposal.dry_run) {
    proposal_ = std::move(proposal);
    drop({});
    return;
  }
  if (proposal.purpose == PlanPurpose::kCommit) {
    const Outcome outcome{proposal.plan, proposal.commit_step};
    for (uint32_t k = 1; k < members_.machines(); ++k) {
      host_.send_control(k, Decided{.epoch = outcome.plan->plan.epoch,
                                    .purpose = PlanPurpose::kCommit,
                                    .switch_step = outcome.switch_step});
    }
    host_.install_committed(outcome.plan, outcome.switch_step);
    proposal.answer(outcome);
    return;
  }
  announced_ = Outcome{proposal.plan, host_.next_switch_step()};
  proposal.answer(*announced_);
}

// OK: a dry run, which ends like a refusal everywhere but succeeds here.
void PlanAgreement::drop(const Status& why) {
  const Proposal proposal = std::move(*proposal_);
  proposal_.reset();
  for (uint32_t k = 1; k < members_.machines(); ++k) {
    host_.send_control(k, Decided{.epoch = proposal.plan->plan.epoch,
                                  .code = why.ok() ? StatusCode::kCANCELLED : why.code(),
                                  .text = why.message(),
                                  .purpose = proposal.purpose});
  }
  if (!why.ok()) {
    host_.count(Counter::kplans_refused, 1);
    proposal.answer(why);
    return;
  }
  proposal.answer(Outcome{proposal.plan, host_.next_switch_step()});
}

void PlanAgreement::on_prepare(const Prepare& prepare) {
  Result<Plan> plan = decode_plan(prepare.plan);
  if (plan.ok() && plan->epoch <= highest_epoch_) return;  // overtaken by what became of it
  Prepared answer;
  prepared_.reset();
  prepared_commit_ = false;
  Status status = plan.status();
  if (plan.ok()) {
    answer.epoch = plan->epoch;
    highest_epoch_ = plan->epoch;
    Result<PlanPtr> prepared = host_.prepare_plan(*plan, prepare.policy);
    status = prepared.status();
    if (prepared.ok()) {
      prepared_ = *prepared;
      prepared_commit_ = prepare.purpose == PlanPurpose::kCommit;
      prepared_since_ns_ = host_.now_ns();
      answer.reserved_bytes = prepared_->reserved_bytes;
    }
  }
  answer.code = status.code();
  answer.text = status.message();
  host_.send_control(0, answer);
}

Status PlanAgreement::on_decided(const Decided& decided) {
  if (!prepared_ || prepared_->plan.epoch != decided.epoch) {
    highest_epoch_ = std::max(highest_epoch_, decided.epoch);
    if (decided.code != StatusCode::kOK) return {};
    return protocol_error("the coordinator decided epoch " + std::to_string(decided.epoch) +
                          ", which this machine has not prepared");
  }
  const PlanPtr plan = std::move(prepared_);
  prepared_.reset();
  prepared_commit_ = false;
  if (decided.code == StatusCode::kOK) announced_.reset();
  if (decided.code == StatusCode::kOK) host_.install_committed(plan, decided.switch_step);
  return {};
}

Status PlanAgreement::on_announcement(uint64_t epoch, uint64_t switch_step) {
  if (epoch == 0 || announced_epoch() == epoch) return {};
  if (!switches_.empty() && switches_.back().epoch >= epoch) return {};  // switched already
  if (!prepared_ || prepared_->plan.epoch != epoch) {
    return protocol_error("the coordinator announced epoch " + std::to_string(epoch) +
                          ", which this machine has not prepared");
  }
  announced_ = Outcome{std::move(prepared_), switch_step};
  prepared_.reset();
  return {};
}

PlanAgreement::PlanPtr PlanAgreement::plan_for(uint64_t step, const PlanPtr& running) {
  if (!announced_ || step < announced_->switch_step) return running;
  const PlanPtr plan = announced_->plan;
  announced_.reset();
  note_switch(plan, step);
  return plan;
}

void PlanAgreement::note_switch(const PlanPtr& plan, uint64_t step) {
  highest_epoch_ = std::max(highest_epoch_, plan->plan.epoch);
  constexpr size_t kSwitchesKept = 16;
  if (switches_.size() == kSwitchesKept) switches_.erase(switches_.begin());
  switches_.push_back({plan->plan.epoch, step, plan->plan.policy_version, plan->hash});
  host_.count(Counter::kepochs_switched, 1);
}

void PlanAgreement::tick(uint64_t now_ns) {
  if (!proposal_ || now_ns < proposal_->deadline_ns) return;
  std::string silent;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (!proposal_->answered[k]) silent += (silent.empty() ? "" : "; ") + members_.machine_name(k);
  }
  drop({StatusCode::kTIMED_OUT, "epoch " + std::to_string(proposal_->plan->plan.epoch) +
                                    " was dropped, no answer from " + silent});
}

void PlanAgreement::reset(const Status& why) {
  announced_.reset();
  prepared_.reset();
  prepared_commit_ = false;
  if (proposal_) drop(why);
}

}  // namespace cgx::scheduler
