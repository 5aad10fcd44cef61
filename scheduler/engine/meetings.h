// Meetings: ranks of this machine that have come to meet, while nobody here knows the members yet.
//
//   meet, again and again -> create_communicator     they have met
//        \--> close_communicator                     gave up; may come again
//        \--> the end of its session                 the others that meet there are told
//
// Owned by the engine.
#pragma once

#include <string>
#include <vector>

#include "scheduler/ports.h"

namespace cgx::scheduler {

struct Comer {  // a rank that has come
  SessionId session;
  uint32_t handle = 0;  // the session's name for the communicator to be
  SessionOptions process;
  std::string name;  // of the communicator
  uint32_t rank = 0;
  Status lost;  // another one that will not join any more

  std::string title() const;  // "rank 1 of communicator 'grads' of job 'train'"
};

class Meetings {
 public:
  explicit Meetings(uint32_t per_session_max) : per_session_max_(per_session_max) {}

  // ALREADY_EXISTS: somebody else is this rank; RANK_LOST: somebody who had come has gone since.
  Status come(SessionId session, const SessionOptions& process, const wire::Meet& message);
  void leave(SessionId session, uint32_t handle);
  // Those of a session that ends; the others will hear of it.
  std::vector<Comer> lose(SessionId session, const std::string& why);

 private:
  const uint32_t per_session_max_;
  std::vector<Comer> comers_;
};

}  // namespace cgx::scheduler
