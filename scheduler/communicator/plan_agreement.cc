#include "scheduler/communicator/plan_agreement.h"

#include <algorithm>

namespace cgx::scheduler {

bool PlanAgreement::proposing(PlanPurpose purpose) const {
  return std::any_of(proposals_.begin(), proposals_.end(), [&](const Proposal& proposal) {
    return !proposal.dry_run && proposal.purpose == purpose;
  });
}

size_t PlanAgreement::dry_runs() const {
  return static_cast<size_t>(
      std::count_if(proposals_.begin(), proposals_.end(),
                    [](const Proposal& proposal) { return proposal.dry_run; }));
}

void PlanAgreement::propose(PlanPurpose purpose, bool dry_run, uint64_t switch_step,
                            Question question, Answer answer) {
  if (purpose == PlanPurpose::kCommit) {
    const Status why(StatusCode::kSUPERSEDED, "a commit of " + members_.title() + " came first");
    for (const PlanPurpose earlier :
         {PlanPurpose::kPolicy, PlanPurpose::kPlanner, PlanPurpose::kCommit}) {
      withdraw(earlier, why);
    }
  }
  CGX_ASSERT(dry_run || !proposing());
  Proposal& proposal = proposals_.emplace_back();
  proposal.purpose = purpose;
  proposal.dry_run = dry_run;
  proposal.number = next_number_++;
  proposal.switch_step = switch_step;
  proposal.question = std::move(question);
  proposal.answer = std::move(answer);
  ask(proposal.number);
}

PlanAgreement::Proposal* PlanAgreement::find(uint64_t number) {
  for (Proposal& proposal : proposals_) {
    if (proposal.number == number) return &proposal;
  }
  return nullptr;
}

// Of those that are being planned the first takes the first epoch; what is answered out of order is
// stale, and asked again.
uint64_t PlanAgreement::next_epoch() const {
  uint64_t highest = highest_epoch_;
  for (const Proposal& proposal : proposals_) {
    if (proposal.plan == nullptr) highest = std::max(highest, proposal.epoch);
  }
  return highest + 1;
}

// A dry run, which takes no memory, would be answered before a plan that does, and make it stale:
// its memory, which may have taken seconds, would be made once more. So the dry run waits.
bool PlanAgreement::waits(const Proposal& proposal) const {
  return proposal.dry_run && proposal.epoch == 0 &&
         std::any_of(proposals_.begin(), proposals_.end(),
                     [](const Proposal& other) { return !other.dry_run && other.plan == nullptr; });
}

void PlanAgreement::ask(uint64_t number) {
  Proposal& proposal = *find(number);
  if (waits(proposal)) return;  // until tick()
  proposal.epoch = 0;
  Result<PlanQuestion> question = proposal.question(next_epoch());
  if (!question.ok()) return refuse(proposal, question.status());
  if (question->epoch <= highest_epoch_) {
    return refuse(proposal, protocol_error("epoch " + std::to_string(question->epoch) + " of " +
                                           members_.title() + " comes after epoch " +
                                           std::to_string(highest_epoch_)));
  }
  question->dry_run = proposal.dry_run;
  proposal.origin = std::exchange(question->origin, {});
  if (members_.machines() > 1) {
    question->message = [purpose = proposal.purpose,
                         dry_run = proposal.dry_run](const PlanFacts& facts) {
      return encode_control(
          Prepare{purpose, static_cast<uint8_t>(dry_run), facts.policy, facts.encoded});
    };
  }
  proposal.epoch = question->epoch;
  port_.ask_planner(std::move(*question),
                    [this, number](const Result<FactsPtr>& facts) { on_planned(number, facts); });
}

void PlanAgreement::on_planned(uint64_t number, const Result<FactsPtr>& facts) {
  Proposal* const proposal = find(number);
  if (proposal == nullptr) return;  // dropped meanwhile
  if (!facts.ok()) return refuse(*proposal, facts.status());
  const bool stale =
      proposal->epoch <= highest_epoch_ || (*facts)->table != port_.table_for(proposal->purpose);
  if (stale) return ask(number);
  const Result<PlanPtr> plan = port_.reserve(*facts);
  if (!plan.ok()) return refuse(*proposal, plan.status());
  highest_epoch_ = proposal->epoch;
  proposal->plan = *plan;
  proposal->deadline_ns = port_.prepare_deadline_ns() + making_ns((*facts)->made_bytes);
  proposal->answered.resize(members_.machines());
  proposal->answered[0] = true;
  if (members_.machines() == 1) return decide(static_cast<size_t>(proposal - proposals_.data()));
  port_.broadcast_body(std::exchange((*facts)->made->message, nullptr));
}

// It cannot be planned here.
void PlanAgreement::refuse(Proposal& proposal, const Status& why) {
  const bool others_wait = proposal.purpose == PlanPurpose::kCommit && members_.machines() > 1;
  const std::string who = others_wait ? members_.machine_name(0) + " refuses: " : "";
  on_refusal(static_cast<size_t>(&proposal - proposals_.data()), {why.code(), who + why.message()});
}

void PlanAgreement::on_prepared(uint32_t machine, const Prepared& prepared) {
  const auto found =
      std::find_if(proposals_.begin(), proposals_.end(), [&](const Proposal& proposal) {
        return proposal.plan != nullptr && proposal.epoch == prepared.epoch;
      });
  if (found == proposals_.end()) return;  // dropped meanwhile
  const auto index = static_cast<size_t>(found - proposals_.begin());
  if (prepared.code != StatusCode::kOK) {
    return on_refusal(
        index, {prepared.code, members_.machine_name(machine) + " refuses: " + prepared.text});
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
  Outcome outcome{proposal.plan, proposal.switch_step, proposal.origin};
  if (!commit) outcome.switch_step = std::max(outcome.switch_step, port_.next_switch_step());
  if (!commit && !announced_.empty()) {
    outcome.switch_step = std::max(outcome.switch_step, newest().switch_step + 1);
  }
  if (proposal.dry_run) return proposal.answer(outcome);
  for (uint32_t k = 1; k < members_.machines(); ++k) {
    port_.send_control(k, Decided{.epoch = outcome.plan->plan.epoch,
                                  .purpose = proposal.purpose,
                                  .switch_step = outcome.switch_step,
                                  .origin = outcome.origin});
  }
  if (commit) {
    take_force(outcome);
  } else {
    announced_.push_back(outcome);
  }
  proposal.answer(outcome);
}

void PlanAgreement::take_force(const Outcome& committed) {
  announced_.clear();
  end_trial();
  note_switch(committed.plan, committed.switch_step, committed.origin);
  port_.install_committed(committed.plan, committed.switch_step);
}

// The ranks go on waiting: to members it is a plan that nobody waits for, and its memory is free.
void PlanAgreement::forget_plan(Proposal& proposal, const Status& why) {
  for (uint32_t k = 1; k < members_.machines() && proposal.plan != nullptr; ++k) {
    port_.send_control(k, Decided{.epoch = proposal.epoch,
                                  .code = StatusCode::kSUPERSEDED,
                                  .text = why.message(),
                                  .purpose = PlanPurpose::kPlanner});
  }
  proposal.plan = nullptr;
  proposal.epoch = 0;
  proposal.deadline_ns = UINT64_MAX;
  proposal.answered.clear();
}

void PlanAgreement::on_refusal(size_t index, const Status& why) {
  Proposal& proposal = proposals_[index];
  if (proposal.purpose != PlanPurpose::kCommit || !port_.asks_otherwise(why)) {
    return drop(index, why);
  }
  forget_plan(proposal, why);
  ask(proposal.number);
}

void PlanAgreement::drop(size_t index, const Status& why) {
  const Proposal proposal = take(index);
  const bool commit = proposal.purpose == PlanPurpose::kCommit;
  // Who has committed waits, though nothing was proposed.
  const bool others_wait = proposal.plan != nullptr || commit;
  const bool tell = others_wait && !proposal.dry_run;
  for (uint32_t k = 1; k < members_.machines() && tell; ++k) {
    port_.send_control(k, Decided{.epoch = proposal.plan != nullptr ? proposal.epoch : 0,
                                  .code = why.code(),
                                  .text = why.message(),
                                  .purpose = proposal.purpose});
  }
  if (why.code() != StatusCode::kSUPERSEDED) port_.count(Counter::kplans_refused, 1);
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
  for (size_t i = 0; i < proposals_.size(); ++i) {
    if (proposals_[i].epoch == 0 && !waits(proposals_[i])) ask(proposals_[i].number);
  }
  for (size_t i = 0; i < proposals_.size();) {
    if (now_ns < proposals_[i].deadline_ns) {
      ++i;
      continue;
    }
    drop(i, {StatusCode::kTIMED_OUT, "epoch " + std::to_string(proposals_[i].epoch) +
                                         " was dropped, no answer from " +
                                         silent_machines(proposals_[i])});
  }
}

void PlanAgreement::postpone(uint64_t deadline_ns) {
  for (Proposal& proposal : proposals_) {
    if (proposal.plan != nullptr)
      proposal.deadline_ns = std::max(proposal.deadline_ns, deadline_ns);
  }
  prepared_since_ns_ = port_.now_ns();
}

void PlanAgreement::on_prepare(const Prepare& prepare) {
  const Result<uint64_t> epoch = epoch_of(prepare.plan);
  if (!epoch.ok()) return answer_prepare(0, epoch.status());
  if (*epoch <= highest_epoch_) return;  // a duplicate
  highest_epoch_ = *epoch;
  const auto table = port_.table_for(prepare.purpose);
  if (!table) {
    return answer_prepare(
        *epoch, Status(StatusCode::kNOT_COMMITTED, members_.ranks_of(members_.machine) +
                                                       " have not committed the tensors of epoch " +
                                                       std::to_string(*epoch)));
  }
  if (preparing_.size() >= kPreparingMax) {
    return answer_prepare(
        *epoch, Status(StatusCode::kBUSY, std::to_string(preparing_.size()) + " plans of " +
                                              members_.title() + " are being prepared"));
  }
  preparing_[*epoch] = {prepare.purpose, prepare.dry_run != 0};
  port_.ask_planner({.table = table,
                     .policy = prepare.policy,
                     .epoch = *epoch,
                     .encoded_plan = prepare.plan,
                     .ranks_wait = prepare.purpose == PlanPurpose::kCommit,
                     .dry_run = prepare.dry_run != 0},
                    [this, epoch = *epoch](const Result<FactsPtr>& facts) {
                      on_question_answered(epoch, facts);
                    });
}

void PlanAgreement::on_question_answered(uint64_t epoch, const Result<FactsPtr>& facts) {
  const auto found = preparing_.find(epoch);
  if (found == preparing_.end()) return;  // dropped meanwhile
  const Preparing what = found->second;
  preparing_.erase(found);
  answer_prepare(epoch, keep_prepared(epoch, what, facts));
}

Result<PlanAgreement::PlanPtr> PlanAgreement::keep_prepared(uint64_t epoch, Preparing what,
                                                            const Result<FactsPtr>& facts) {
  CGX_RETURN_IF_ERROR(facts.status());
  if ((*facts)->table != port_.table_for(what.purpose)) {
    return Status(StatusCode::kSUPERSEDED, "a commit of " + members_.title() + " came first");
  }
  CGX_ASSIGN_OR_RETURN(const PlanPtr plan, port_.reserve(*facts));
  if (what.dry_run) return plan;
  prepared_[epoch] = {plan, what.purpose};
  if (what.purpose == PlanPurpose::kCommit) {
    prepared_commit_ = true;
    prepared_since_ns_ = port_.now_ns();
    undecided_making_ns_ = making_ns((*facts)->made_bytes);
  }
  return plan;
}

void PlanAgreement::answer_prepare(uint64_t epoch, const Result<PlanPtr>& prepared) {
  Prepared answer{
      .epoch = epoch, .code = prepared.status().code(), .text = prepared.status().message()};
  if (prepared.ok()) answer.reserved_bytes = (*prepared)->needed_bytes();
  port_.send_control(0, answer);
}

// A commit that is refused takes with it what was prepared for it, and for commits before it.
PlanAgreement::Kept PlanAgreement::take_prepared(const Decided& decided) {
  const auto found = prepared_.find(decided.epoch);
  const Kept kept = found == prepared_.end() ? Kept{nullptr, decided.purpose} : found->second;
  if (found != prepared_.end()) prepared_.erase(found);
  if (decided.purpose == PlanPurpose::kCommit && decided.code != StatusCode::kOK) {
    const uint64_t last = decided.epoch == 0 ? UINT64_MAX : decided.epoch;
    std::erase_if(prepared_, [&](const auto& each) {
      return each.second.purpose == PlanPurpose::kCommit && each.first <= last;
    });
  }
  return kept;
}

Status PlanAgreement::on_decided(const Decided& decided) {
  highest_epoch_ = std::max(highest_epoch_, decided.epoch);
  const bool commit = decided.purpose == PlanPurpose::kCommit;
  preparing_.erase(decided.epoch);
  const auto [plan, purpose] = take_prepared(decided);
  if (commit || purpose == PlanPurpose::kCommit) prepared_commit_ = false;
  if (decided.code != StatusCode::kOK) return {};
  if (plan == nullptr || purpose != decided.purpose) {
    return protocol_error("the coordinator decided epoch " + std::to_string(decided.epoch) +
                          ", which this machine has not prepared" +
                          (plan == nullptr ? "" : " for that purpose"));
  }
  decided_epoch_ = std::max(decided_epoch_, decided.epoch);
  const Outcome outcome{plan, decided.switch_step, decided.origin};
  if (commit) return install(outcome);
  announced_.push_back(outcome);
  return {};
}

Status PlanAgreement::install(const Outcome& committed) {
  const PlanPtr& plan = committed.plan;
  if (plan->table != port_.table_for(PlanPurpose::kCommit) || !port_.between_steps()) {
    return protocol_error(
        "the coordinator decided a commit that this machine's ranks do not wait "
        "for, with epoch " +
        std::to_string(plan->plan.epoch));
  }
  take_force(committed);
  return {};
}

Status PlanAgreement::on_announcement(uint64_t epoch, uint64_t switch_step) {
  if (epoch == 0 || announced_epoch() >= epoch) return {};
  if (!switches_.empty() && switches_.back().epoch >= epoch) return {};  // switched already
  return protocol_error("the coordinator says that epoch " + std::to_string(epoch) +
                        " takes force at step " + std::to_string(switch_step) +
                        "; this machine has not heard of its decision");
}

Status PlanAgreement::on_rumour(uint32_t machine, Announcement known) {
  const bool old = known.epoch <= decided_epoch_ || known.epoch <= awaited_.epoch;
  if (members_.coordinator() || old) return {};
  if (prepared_.count(known.epoch) == 0) {
    return protocol_error(members_.machine_name(machine) + " has heard that epoch " +
                          std::to_string(known.epoch) + " takes force at step " +
                          std::to_string(known.switch_step) +
                          "; this machine has not prepared it, so it cannot have been decided");
  }
  if (!awaits_decision()) awaited_since_ns_ = port_.now_ns();
  awaited_ = known;
  return {};
}

// Of a plan that takes force. None for a plan that was to be tried against another than the one
// that runs: then it never runs, on any machine.
PlanAgreement::TrialRun PlanAgreement::trial_of(const Outcome& outcome,
                                                const PlanPtr& running) const {
  const Trial& trial = outcome.plan->plan.trial;
  const PlanPtr& now = base(running);
  if (!trial.on() || trial.against != now->hash || outcome.plan->table != now->table) return {};
  return {now, outcome.plan, outcome.switch_step};
}

std::vector<PlanAgreement::PlanPtr> PlanAgreement::announced() const {
  std::vector<PlanPtr> plans;
  for (const Outcome& outcome : announced_) plans.push_back(outcome.plan);
  return plans;
}

const PlanAgreement::PlanPtr& PlanAgreement::newest_agreed(const PlanPtr& running) const {
  const auto stays = [&](const Outcome& outcome) {
    return !outcome.plan->plan.trial.on() && outcome.plan->table == running->table;
  };
  const auto found = std::find_if(announced_.rbegin(), announced_.rend(), stays);
  return found != announced_.rend() ? found->plan : base(running);
}

PlanAgreement::PlanPtr PlanAgreement::plan_at(uint64_t step, const PlanPtr& running) const {
  const bool switches = !announced_.empty() && step >= announced_.front().switch_step;
  if (!switches) return trial_ ? trial_.plan_at(step) : running;
  const Outcome& next = announced_.front();
  if (!next.plan->plan.trial.on()) return next.plan;
  const TrialRun trial = trial_of(next, running);
  return trial ? trial.plan_at(step) : base(running);
}

PlanAgreement::PlanPtr PlanAgreement::plan_for(uint64_t step, const PlanPtr& running) {
  const PlanPtr plan = plan_at(step, running);
  if (!announced_.empty() && step >= announced_.front().switch_step) {
    const Outcome next = std::move(announced_.front());
    announced_.pop_front();
    const TrialRun trial = trial_of(next, running);
    trial_ = trial;
    if (trial_ || !next.plan->plan.trial.on()) note_switch(next.plan, step, next.origin);
  }
  if (trial_ && trial_.over(step)) end_trial();
  return plan;
}

PlanOrigin PlanAgreement::origin_of(uint64_t epoch) const {
  const auto found = std::find_if(switches_.rbegin(), switches_.rend(),
                                  [&](const SwitchSnapshot& one) { return one.epoch == epoch; });
  return found == switches_.rend() ? PlanOrigin() : found->origin;
}

void PlanAgreement::note_switch(const PlanPtr& plan, uint64_t step, const PlanOrigin& origin) {
  highest_epoch_ = std::max(highest_epoch_, plan->plan.epoch);
  constexpr size_t kSwitchesKept = 16;
  if (switches_.size() == kSwitchesKept) switches_.erase(switches_.begin());
  switches_.push_back(
      SwitchSnapshot{plan->plan.epoch, step, plan->plan.policy_version, plan->hash, origin});
  port_.count(Counter::kepochs_switched, 1);
}

uint64_t PlanAgreement::reserved_bytes(const PlanPtr& running) const {
  uint64_t bytes = 0;
  const auto add = [&](const PreparedPlan& plan) {
    bytes += plan.held_bytes() + plan.missing_bytes;
  };
  for (const Proposal& proposal : proposals_) {
    if (proposal.plan != nullptr) add(*proposal.plan);
  }
  for (const auto& [epoch, kept] : prepared_) add(*kept.plan);
  for (const Outcome& outcome : announced_) add(*outcome.plan);
  // Both have run: the residuals of either are there.
  if (trial_) bytes += (running == trial_.base ? trial_.tried : trial_.base)->held_bytes();
  return bytes;
}

void PlanAgreement::end(const Status& why) {
  announced_.clear();
  end_trial();
  preparing_.clear();
  prepared_.clear();
  prepared_commit_ = false;
  while (!proposals_.empty()) drop(proposals_.size() - 1, why);
}

}  // namespace cgx::scheduler
