// Communicator, ceilings: what the watch over them sees and asks for.
#include <utility>

#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {

bool Communicator::sets_ceilings() const {
  return members_.coordinator() && members_.machines() > 1 && !replay_.on() && steps_.installed();
}

void Communicator::follow_ceilings(const Event& event) {
  if (event.kind == EventKind::kswitched) {
    ceilings_.follow(*steps_.plan()->facts, whole_step(event));
  }
  if (event.kind != EventKind::kstep_completed) return;
  const uint64_t step = whole_step(event);
  if (!ceilings_.completed(step) || members_.coordinator()) return;
  if (steps_.plan()->policy.ceilings != CeilingPlanner::kgravac) return;
  const LossSample& last = ceilings_.losses().last();
  Losses message{.step = step, .values = last.values, .intended = last.intended, .lost = {}};
  message.lost.assign(last.lost.begin(), last.lost.end());
  losses_to_tell_ = std::move(message);
}

void Communicator::tell_losses() {
  if (const auto losses = std::exchange(losses_to_tell_, std::nullopt)) send_control(0, *losses);
}

// Sums over all machines decide; what is no number decides nothing.
void Communicator::handle(uint32_t /*machine*/, const Losses& message) {
  const std::optional<LossSample> sample = sample_of(message);
  if (members_.coordinator() && sample) ceilings_.heard(message.step, *sample);
}

bool Communicator::free_to_propose() const {
  return state_ == State::kRunning && reordered_ && !agreement_.proposing() && !desk_.wish() &&
         !pending_ && agreement_.announced_epoch() == 0;
}

bool Communicator::may_set_ceilings() const {
  return free_to_propose() && (!searches_plans() || pilot_.idle());
}

void Communicator::search_ceilings(CeilingQuestion question, Wanted wanted,
                                   std::function<void(const Result<CeilingAnswer>&)> answer) {
  port_.planner().search(std::move(question), std::move(wanted), std::move(answer));
}

void Communicator::propose_ceilings(
    std::vector<CodecSpec> ceilings, PlanOrigin origin,
    std::function<void(const Result<CeilingPort::Agreed>&)> answer) {
  agreement_.propose(
      PlanPurpose::kPlanner, /*dry_run=*/false, 0,
      [this, ceilings = std::move(ceilings),
       origin = std::move(origin)](uint64_t epoch) -> Result<PlanQuestion> {
        PlanQuestion question = question_of_own(epoch, running_order(), origin);
        question.ceilings = ceilings;
        if (desk_.policy().mode == PlanMode::kFixed) return question;
        question.groups = agreement_.base(steps_.plan())->plan.groups;
        question.under_new_ceilings = true;
        return question;
      },
      [answer = std::move(answer)](const Result<PlanAgreement::Outcome>& outcome) {
        if (!outcome.ok()) return answer(outcome.status());
        answer(CeilingPort::Agreed{outcome->plan->plan.epoch, outcome->switch_step});
      });
}

}  // namespace cgx::scheduler
