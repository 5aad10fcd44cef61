// What other machines say of themselves when the coordinator searches for plans: it asks them
// before each survey, and waits only so long. Who has not answered by then, or refuses, is left
// out. Answers to an earlier question count for nothing, nor do second ones.
//
// Owned by one communicator, on its coordinator; told of everything, it asks nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/communicator/control.h"
#include "scheduler/communicator/members.h"
#include "scheduler/planners/planner_port.h"

namespace cgx::scheduler {

class MachineProfiles {
 public:
  explicit MachineProfiles(const Members& members) : members_(members) {}

  struct Waiting {  // a survey, for what others say
    SurveyQuestion question;
    Wanted wanted;
    PlannerPort::SurveyAnswer answer;
    uint64_t since_ns = 0, deadline_ns = 0;
  };
  // The number under which others are to be asked. A survey that waits already is never made.
  uint64_t ask(Waiting survey);
  void hear(uint32_t machine, const ProfileAnswerMessage& message);
  void miss(uint32_t machine, const std::string& why);  // it will not answer
  // A survey waits no longer: all have answered, or its time is over.
  bool ready(uint64_t now_ns) const;
  Waiting take();  // with what was heard. REQUIRES: ready()
  void stop();     // nobody searches any more

  // What was heard for the last survey that was taken. A plan that was on trial then runs under
  // another epoch since it was adopted; others have told of it under the first.
  void add_to(SurveyQuestion& question) const;

 private:
  struct Said {
    std::optional<wire::MachineProfile> profile;
    std::string why_not;  // empty beside no profile: it has said nothing yet
    bool open() const { return !profile && why_not.empty(); }
  };
  std::string left_out(uint64_t waited_ns) const;

  const Members& members_;
  uint64_t number_ = 0;
  std::optional<Waiting> waiting_;
  std::vector<Said> said_;  // by machine, to the question that is open
  std::vector<wire::MachineProfile> heard_;
  uint64_t measured_epoch_ = 0;  // of the step that the survey was for
  std::string left_out_;
};

}  // namespace cgx::scheduler
