#include "scheduler/engine/meetings.h"

#include <algorithm>

#include "scheduler/communicator/members.h"

namespace cgx::scheduler {
namespace {

bool meets_with(const Comer& one, const Comer& other) {
  return one.process.uid == other.process.uid && one.process.job == other.process.job &&
         one.name == other.name;
}

}  // namespace

std::string Comer::title() const {
  return "rank " + std::to_string(rank) + " of communicator '" + name + "' of job '" + process.job +
         "'";
}

Status Meetings::come(SessionId session, const SessionOptions& process, const wire::Meet& message) {
  if (message.name.empty() || message.name.size() > wire::kNameBytesMax) {
    return invalid_argument("communicator name of " + std::to_string(message.name.size()) +
                            " bytes is not in 1.." + std::to_string(wire::kNameBytesMax));
  }
  const Comer comer{session, message.comm, process, message.name, message.rank, {}};
  uint32_t of_session = 0;
  for (const Comer& other : comers_) {
    if (other.session == session && other.handle == message.comm) return other.lost;
    of_session += other.session == session;
    if (other.rank != comer.rank || !meets_with(other, comer)) continue;
    return {StatusCode::kALREADY_EXISTS, comer.title() + " has already come to meet the others " +
                                             "and is alive: process " +
                                             std::to_string(other.process.pid) + kAnotherJob};
  }
  if (of_session >= per_session_max_) {
    return resource_exhausted("limits.communicators (" + std::to_string(per_session_max_) +
                              ") communicators meet in this session");
  }
  comers_.push_back(comer);
  return {};
}

void Meetings::leave(SessionId session, uint32_t handle) {
  std::erase_if(comers_, [&](const Comer& comer) {
    return comer.session == session && comer.handle == handle;
  });
}

std::vector<Comer> Meetings::lose(SessionId session, const std::string& why) {
  const auto stay = std::stable_partition(comers_.begin(), comers_.end(), [&](const Comer& comer) {
    return !(comer.session == session);
  });
  std::vector<Comer> gone(stay, comers_.end());
  comers_.erase(stay, comers_.end());
  for (const Comer& lost : gone) {
    for (Comer& comer : comers_) {
      if (!meets_with(lost, comer) || !comer.lost.ok()) continue;
      comer.lost = Status(StatusCode::kRANK_LOST, lost.title() + " is gone: " + why);
    }
  }
  return gone;
}

}  // namespace cgx::scheduler
