// Communicator, machines that differ: before the coordinator looks for plans it asks the others
// what work takes them.
#include <algorithm>
#include <utility>

#include "scheduler/communicator/communicator.h"
#include "scheduler/planners/slowest_machine.h"

namespace cgx::scheduler {

// One way, to the machine that is farthest.
double Communicator::trip_ns() const {
  uint64_t rtt_ns = 0;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    rtt_ns = std::max(rtt_ns, peers_[k].least_rtt_ns());
  }
  return static_cast<double>(rtt_ns) / 2;
}

// Trainers lose what the daemon takes of their cores.
double Communicator::lost_share() const {
  const uint32_t cores = port_.options().cores;
  return cores != 0 && members_.local_count() + 1 > cores ? 1.0 : 0.0;
}

// Where groups are merged nobody asks what work takes: trials alone decide.
void Communicator::survey(Known known, Wanted wanted, SurveyAnswer answer) {
  if (port_.options().costs == nullptr) {
    return answer(Status(StatusCode::kUNIMPLEMENTED, "nobody knows what codecs cost here"));
  }
  SurveyQuestion asked = question_of_job(std::move(known));
  const bool priced = asked.running->policy.mode == PlanMode::kAuto;
  if (!priced) {
    return port_.planner().survey(std::move(asked), std::move(wanted), std::move(answer));
  }
  const ProfileAsk question{profiles_.ask({.question = std::move(asked),
                                           .wanted = std::move(wanted),
                                           .answer = std::move(answer),
                                           .since_ns = now_ns(),
                                           .deadline_ns = prepare_deadline_ns()})};
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    const bool gone = k != members_.machine && (!peers_[k].up || peers_[k].departed);
    if (gone) profiles_.miss(k, "has gone");
  }
  broadcast(question);
}

void Communicator::search_plans() {
  survey_if_heard();
  pilot_.work(agreement_.base(steps_.plan()));
}

// Later, between steps: what others have said is there, or was waited for long enough.
void Communicator::survey_if_heard() {
  if (!profiles_.ready(now_ns())) return;
  MachineProfiles::Waiting survey = profiles_.take();
  port_.planner().survey(std::move(survey.question), std::move(survey.wanted),
                         std::move(survey.answer));
}

void Communicator::stop_search() {
  pilot_.stop();
  profiles_.stop();
}

// Answered in the next round, once however often it was asked since the last.
void Communicator::handle(uint32_t machine, const ProfileAsk& message) {
  if (machine == 0 && !members_.coordinator()) profile_asked_ = message.number;
}

void Communicator::tell_profile() {
  const std::optional<uint64_t> number = std::exchange(profile_asked_, std::nullopt);
  if (!number) return;
  ProfileAnswerMessage answer{.number = *number, .text = {}, .profile = {}};
  if (const auto& costs = port_.options().costs) {
    answer.profile =
        wire::encode_profile(profile_of_machine(*costs, trip_ns(), lost_share(), plan_times_));
  } else {
    answer.code = StatusCode::kUNIMPLEMENTED;
    answer.text = "nobody knows what codecs cost there";
  }
  send_control(0, answer);
}

void Communicator::handle(uint32_t machine, const ProfileAnswerMessage& message) {
  if (members_.coordinator()) profiles_.hear(machine, message);
}

}  // namespace cgx::scheduler
