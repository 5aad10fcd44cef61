#include "scheduler/plan_agreement.h"

#include <algorithm>

namespace cgx::scheduler {

// --- Coordinator
// -----------------------------------------------------------------------------------

bool PlanAgreement::proposing(PlanPurpose purpose) const {
  return std::any_of(proposals_.begin(), proposals_.end(), [&](const Proposal& proposal) {
    return !proposal.dry_run && proposal.purpose == purpose;
  });
}

void PlanAgreement::propose(PlanPurpose purpose, bool dry_run, const PlanPtr& plan,
                            uint64_t deadline_ns, uint64_t switch_step, Answer answer) {
  if (purpose == PlanPurpose::kCommit) {
    const Status why(StatusCode::kSUPERSEDED, "a commit of " + members_.title() + " came first");
    for (const PlanPurpose earlier :
         {PlanPurpose::kPolicy, PlanPurpose::kOrder, PlanPurpose::kCommit}) {
      withdraw(earlier, why);
    }
  }
  CGX_ASSERT(dry_run || !proposing());
  highest_epoch_ = std::max(highest_epoch_, plan->plan.epoch);
  Proposal& proposal = proposals_.emplace_back();
  proposal.purpose = purpose;
  proposal.dry_run = dry_run;
  proposal.plan = plan;
  proposal.deadline_ns = deadline_ns;
  proposal.switch_step = switch_step;
  proposal.answered.resize(members_.machines());
  proposal.answered[0] = true;
  proposal.answer = std::move(answer);
  const Prepare prepare{purpose, static_cast<uint8_t>(dry_run), plan->policy,
                        encode_plan(plan->plan)};
  for (uint32_t k = 1; k < members_.machines(); ++k) host_.send_control(k, prepare);
  if (members_.machines() == 1) decide(proposals_.size() - 1);
}

void PlanAgreement::on_prepared(uint32_t machine, const Prepared& prepared) {
  const auto found = std::find_if(
      proposals_.begin(), proposals_.end(),
      [&](const Proposal& proposal) { return proposal.plan->plan.epoch == prepared.epoch; });
  if (found == proposals_.end()) return;  // dropped meanwhile
  const auto index = static_cast<size_t>(found - proposals_.begin());
  if (prepared.code != StatusCode::kOK) {
    return drop(index,
                {prepared.code, members_.machine_name(machine) + " refuses: " + prepared.text});
  }
  found->answered[machine] = true;
  const bool all =
      std::find(found->answered.begin(), found->answered.end(), false) == found->answered.end();
  if (all) decide(index);
}

PlanAgreement::Proposal PlanAgreement::take(size_t index) {
  Proposal proposal = std::move(proposals_[index]);
  proposals_.erase(proposals_.begin() + static_cast<int64_t>(index));
  return proposal;
}

// Every machine is ready: from here on the switch happens.
void PlanAgreement::decide(size_t index) {
  const bool commit = proposals_[index].purpose == PlanPurpose::kCommit;
  const bool later = !commit && !proposals_[index].dry_run;
  if (later && announced_.size() >= kAnnouncedMax) {
    return drop(index, {StatusCode::kBUSY,
                        std::to_string(announced_.size()) + " epochs of " + members_.title() +
                            " are announced, and training has not come to step " +
                            std::to_string(announced_.front().switch_step)});
  }
  const Proposal proposal = take(index);
  Outcome outcome{proposal.plan, proposal.switch_step};
  if (!commit) outcome.switch_step = std::max(outcome.switch_step, host_.next_switch_step());
  if (!commit && !announced_.empty()) {
    outcome.switch_step = std::max(outcome.switch_step, newest().switch_step + 1);
  }
  if (proposal.dry_run) return proposal.answer(outcome);
  for (uint32_t k = 1; k < members_.machines(); ++k) {
    host_.send_control(k, Decided{.epoch = outcome.plan->plan.epoch,
                                  .purpose = proposal.purpose,
                                  .switch_step = outcome.switch_step});
  }
  if (commit) {
    announced_.clear();
    host_.install_committed(outcome.plan, outcome.switch_step);
  } else {
    announced_.push_back(outcome);
  }
  proposal.answer(outcome);
}

void PlanAgreement::drop(size_t index, const Status& why) {
  const Proposal proposal = take(index);
  for (uint32_t k = 1; k < members_.machines() && !proposal.dry_run; ++k) {
    host_.send_control(k, Decided{.epoch = proposal.plan->plan.epoch,
                                  .code = why.code(),
                                  .text = why.message(),
                                  .purpose = proposal.purpose});
  }
  if (why.code() != StatusCode::kSUPERSEDED) host_.count(Counter::kplans_refused, 1);
  proposal.answer(why);
}

void PlanAgreement::withdraw(PlanPurpose purpose, const Status& why) {
  for (size_t i = 0; i < proposals_.size(); ++i) {
    if (!proposals_[i].dry_run && proposals_[i].purpose == purpose) return drop(i, why);
  }
}

std::string PlanAgreement::silent_machines(const Proposal& proposal) const {
  std::string names;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (!proposal.answered[k]) names += (names.empty() ? "" : "; ") + members_.machine_name(k);
  }
  return names;
}

void PlanAgreement::tick(uint64_t now_ns) {
  for (size_t i = 0; i < proposals_.size();) {
    if (now_ns < proposals_[i].deadline_ns) {
      ++i;
      continue;
    }
    drop(i, {StatusCode::kTIMED_OUT, "epoch " + std::to_string(proposals_[i].plan->plan.epoch) +
                                         " was dropped, no answer from " +
                                         silent_machines(proposals_[i])});
  }
}

void PlanAgreement::postpone(uint64_t deadline_ns) {
  for (Proposal& proposal : proposals_) {
    proposal.deadline_ns = std::max(proposal.deadline_ns, deadline_ns);
  }
  prepared_since_ns_ = host_.now_ns();
}

// --- Member
// ----------------------------------------------------------------------------------------

void PlanAgreement::on_prepare(const Prepare& prepare) {
  Result<Plan> plan = decode_plan(prepare.plan);
  if (plan.ok() && plan->epoch <= highest_epoch_) return;  // a duplicate
  Prepared answer;
  Status status = plan.status();
  if (plan.ok()) {
    answer.epoch = plan->epoch;
    highest_epoch_ = plan->epoch;
    const Result<PlanPtr> prepared = host_.prepare_plan(prepare.purpose, *plan, prepare.policy);
    status = prepared.status();
    if (prepared.ok()) answer.reserved_bytes = (*prepared)->reserved_bytes;
    if (prepared.ok() && prepare.dry_run == 0) {
      prepared_[plan->epoch] = *prepared;
      if (prepare.purpose == PlanPurpose::kCommit) {
        prepared_commit_ = true;
        prepared_since_ns_ = host_.now_ns();
      }
    }
  }
  answer.code = status.code();
  answer.text = status.message();
  host_.send_control(0, answer);
}

Status PlanAgreement::on_decided(const Decided& decided) {
  highest_epoch_ = std::max(highest_epoch_, decided.epoch);
  const bool commit = decided.purpose == PlanPurpose::kCommit;
  if (commit) prepared_commit_ = false;
  const auto found = prepared_.find(decided.epoch);
  const PlanPtr plan = found == prepared_.end() ? nullptr : found->second;
  if (found != prepared_.end()) prepared_.erase(found);
  if (decided.code != StatusCode::kOK) return {};
  if (plan == nullptr) {
    return protocol_error("the coordinator decided epoch " + std::to_string(decided.epoch) +
                          ", which this machine has not prepared");
  }
  if (!commit) {
    announced_.push_back({plan, decided.switch_step});
    return {};
  }
  announced_.clear();
  host_.install_committed(plan, decided.switch_step);
  return {};
}

Status PlanAgreement::on_announcement(uint64_t epoch, uint64_t switch_step) {
  if (epoch == 0 || announced_epoch() >= epoch) return {};
  if (!switches_.empty() && switches_.back().epoch >= epoch) return {};  // switched already
  return protocol_error("the coordinator says that epoch " + std::to_string(epoch) +
                        " takes force at step " + std::to_string(switch_step) +
                        "; this machine has not heard of its decision");
}

// --- Both
// ------------------------------------------------------------------------------------------

PlanAgreement::PlanPtr PlanAgreement::plan_at(uint64_t step, const PlanPtr& running) const {
  const bool switches = !announced_.empty() && step >= announced_.front().switch_step;
  return switches ? announced_.front().plan : running;
}

PlanAgreement::PlanPtr PlanAgreement::plan_for(uint64_t step, const PlanPtr& running) {
  const PlanPtr plan = plan_at(step, running);
  if (plan == running) return running;
  announced_.pop_front();
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

uint64_t PlanAgreement::reserved_bytes() const {
  uint64_t bytes = 0;
  for (const Proposal& proposal : proposals_) bytes += proposal.plan->reserved_bytes;
  for (const auto& [epoch, plan] : prepared_) bytes += plan->reserved_bytes;
  for (const Outcome& outcome : announced_) bytes += outcome.plan->reserved_bytes;
  return bytes;
}

void PlanAgreement::end(const Status& why) {
  announced_.clear();
  prepared_.clear();
  prepared_commit_ = false;
  while (!proposals_.empty()) drop(proposals_.size() - 1, why);
}

}  // namespace cgx::scheduler
