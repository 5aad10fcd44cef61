// Communicator, mode auto: what its pilot sees and asks for.
#include <algorithm>
#include <utility>

#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {

bool Communicator::searches_plans() const {
  return members_.coordinator() && members_.machines() > 1 && !replay_.on() && steps_.installed() &&
         steps_.plan()->policy.mode != PlanMode::kFixed;
}

// Another machine searches plans for this one, and will ask what steps took here.
bool Communicator::is_searched_for() const {
  return !members_.coordinator() && steps_.installed() &&
         steps_.plan()->policy.mode == PlanMode::kAuto;
}

bool Communicator::measures_steps() const {
  return searches_plans() || is_searched_for() || !looks_.empty();
}

void Communicator::measure(const Event& event) {
  std::optional<StepSample> sample = meter_.take(event, port_.now_ns());
  if (!sample) return;
  sample->step = whole_step(event);
  sample->answer_ns_per_byte = answers_.take_ns_per_byte();
  const double busy_ns = busy_since_last_step();
  if (sample->period_ns > 0) sample->busy_ns = busy_ns;
  const bool probed = std::exchange(probe_disturbs_, false);
  const Plan& plan = steps_.plan()->plan;
  const auto due = [&](uint32_t every) { return every > 1 && sample->step % every == 0; };
  const bool usual = !due(plan.stats_steps) && !due(plan.replica_check_steps) &&
                     !ceilings_.losses().disturbs(sample->step) && !probed;
  if (!members_.coordinator()) return plan_times_.take(*sample, usual);
  const PlanAgreement::PlanPtr base = agreement_.base(steps_.plan());
  if (usual && sample->period_ns > 0 && sample->epoch == base->plan.epoch) show_step(*sample);
  if (!searches_plans()) return;
  probe_link(*base, *sample);
  probe_disturbs_ = probe_.disturbs();
  pilot_.completed(base, *std::move(sample), usual);
  if (pilot_.settled() && base->plan.epoch != profiled_epoch_) keep_profile(*base);
}

uint64_t Communicator::whole_step(const Event& event) const {
  const uint64_t near = steps_.completed_end();
  return near + static_cast<uint64_t>(static_cast<int64_t>(
                    static_cast<int32_t>(event.step - static_cast<uint32_t>(near))));
}

// Of GPUs the arithmetic is elsewhere; that of calls is not the steps'.
double Communicator::busy_since_last_step() {
  const uint64_t now_ns = members_.site == kHostSite ? port_.busy_ns() : 0;
  const uint64_t before_ns = std::exchange(busy_mark_ns_, now_ns);
  const uint64_t call = calls_.completed_end();
  const bool called = std::exchange(busy_mark_call_, call) != call || calls_.operations_open();
  return now_ns == 0 || before_ns == 0 || called ? 0 : static_cast<double>(now_ns - before_ns);
}

// Of a plan that compresses nothing, steps show how fast links are. One link speaks for all: what
// changes is mostly a switch, or who else uses it.
void Communicator::probe_link(const PreparedPlan& plan, const StepSample& sample) {
  if (plan.plan.epoch != probed_epoch_) {
    probed_epoch_ = plan.plan.epoch;
    probe_.begin();
  }
  if (!pilot_.settled() || !plan.facts->lossy) return probe_.ended(sample);
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k == members_.machine || members_.beside(k)) continue;
    return send_probe(k, probe_.due(sample, pool_.slab_bytes()));
  }
}

// Each heartbeat is answered, but only the last one's answer is a probe's (peers.h).
void Communicator::send_probe(uint32_t machine, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t frame_bytes = std::min(bytes, pool_.slab_bytes());
    send_heartbeat(machine, beat(), frame_bytes);
    bytes -= frame_bytes;
  }
}

void Communicator::keep_profile(const PreparedPlan& plan) {
  profiled_epoch_ = plan.plan.epoch;
  const KeptFor whose{members_.uid, members_.job, members_.name};
  const Profile profile{.table_hash = plan.plan.table_hash,
                        .machines = plan.plan.machines,
                        .policy = plan.policy,
                        .groups = plan.plan.groups};
  const std::optional<KeptFor> lost = port_.kept_profiles().keep(whose, profile);
  if (lost) note_forgotten("a plan kept for a name is forgotten, too many are kept", *lost);
  if (ProfileLog* const log = port_.profile_log()) {
    port_.planner().run([log, whose, profile] { log->kept(whose, profile); }, [] {});
  }
}

// Of the last communicator of this name; empty: the policy's own.
std::vector<Group> Communicator::groups_of_profile() {
  begins_with_profile_ = false;
  const Policy& policy = desk_.policy();
  const bool bounded = policy.ceilings != CeilingPlanner::kpolicy;  // nothing is measured yet
  if (policy.mode == PlanMode::kFixed || bounded || steps_.installed()) return {};
  if (profile_refused_) return {};
  const Result<const Profile*> found = port_.kept_profiles().find(
      {members_.uid, members_.job, members_.name}, *pending_, members_.machines(), policy);
  if (found.ok() && *found == nullptr) return {};
  begins_with_profile_ = found.ok();
  port_.note(EventLevel::kInfo,
             found.ok() ? "communicator begins with the plan kept for its name"
                        : "the plan kept for the name " + found.status().message(),
             {{"job", members_.job}, {"communicator", members_.name}});
  return found.ok() ? (*found)->groups : std::vector<Group>();
}

// The plan kept for the name may ask for more memory than there is now: the job begins without it,
// and a later one may have the memory. One that this version does not run is forgotten.
bool Communicator::asks_otherwise(const Status& why) {
  const bool room = why.code() == StatusCode::kRESOURCE_EXHAUSTED;
  const bool unknown =
      why.code() == StatusCode::kINVALID_ARGUMENT || why.code() == StatusCode::kUNIMPLEMENTED;
  if (!begins_with_profile_ || !living() || !(room || unknown)) return false;
  profile_refused_ = true;
  port_.note(EventLevel::kWarning, "communicator begins without the plan kept for its name",
             {{"job", members_.job}, {"communicator", members_.name}, {"why", why.message()}});
  if (room) return true;
  const KeptFor whose{members_.uid, members_.job, members_.name};
  port_.kept_profiles().forget(whose);
  if (ProfileLog* const log = port_.profile_log()) {
    port_.planner().run([log, whose] { log->forgotten(whose); }, [] {});
  }
  return true;
}

bool Communicator::may_propose() const {
  return free_to_propose() && ceilings_.known();
}

SurveyQuestion Communicator::question_of_job(Known known) const {
  return {.running = agreement_.base(steps_.plan())->facts,
          .measured = std::move(known.measured),
          .seen = std::move(known.seen),
          .lost = std::move(known.lost),
          .faster = known.faster,
          .order = running_order(),
          .ceilings = ceilings_.ceilings(),
          .machines = members_.machines(),
          .sites_each = members_.sites_each(),
          .slab_bytes = pool_.slab_bytes(),
          .trip_ns = trip_ns(),
          .share = lost_share(),
          .costs = port_.options().costs,
          .between_ns = known.between_ns};
}

// The last thing that the search has said of a plan that it keeps tells what it has measured.
PlanOrigin Communicator::origin_of_search(const std::vector<Group>& groups,
                                          const Trial& trial) const {
  const Plan& running = agreement_.base(steps_.plan())->plan;
  const std::string beside = "epoch " + std::to_string(running.epoch);
  if (trial.on()) return {kByPlanner, "on trial against " + beside + ": " + codecs_text(groups)};
  if (groups == running.groups)
    return {kByPlanner, "ends a trial: the plan of " + beside + " stays"};
  const auto& notes = pilot_.notes();
  const auto kept = std::find_if(notes.rbegin(), notes.rend(),
                                 [](const PlanNote& note) { return note.verdict == "kept"; });
  if (kept == notes.rend()) return {kByPlanner, codecs_text(groups)};
  return {kByPlanner, kept->name + ": kept, a step took " +
                          std::to_string(percent_of(kept->measured)) + " % of one of " + beside};
}

void Communicator::propose(std::vector<Group> groups, const Trial& trial,
                           std::function<void(const Result<PilotPort::Agreed>&)> answer) {
  agreement_.propose(
      PlanPurpose::kPlanner, /*dry_run=*/false, 0,
      [this, groups = std::move(groups), trial](uint64_t epoch) -> Result<PlanQuestion> {
        PlanQuestion question =
            question_of_own(epoch, running_order(), origin_of_search(groups, trial));
        question.groups = groups;
        question.trial = trial;
        return question;
      },
      [answer = std::move(answer)](const Result<PlanAgreement::Outcome>& outcome) {
        if (!outcome.ok()) return answer(outcome.status());
        answer(PilotPort::Agreed{outcome->plan, outcome->switch_step});
      });
}

void Communicator::report(const PlanNote& note) {
  if (PlanLog* const log = port_.plan_log()) {
    log->looked_at({members_.job, members_.name, note});
  }
  if (note.limits) {
    return port_.note(EventLevel::kWarning, "a search for plans is limited",
                      {{"job", members_.job},
                       {"communicator", members_.name},
                       {"why", note.verdict},
                       {"step", note.step}});
  }
  port_.note(EventLevel::kInfo, "a plan was looked at",
             {{"job", members_.job},
              {"communicator", members_.name},
              {"plan", note.name},
              {"verdict", note.verdict},
              {"epoch", note.epoch},
              {"step", note.step},
              {"predicted_percent", percent_of(note.predicted)},
              {"measured_percent", percent_of(note.measured)}});
}

}  // namespace cgx::scheduler
