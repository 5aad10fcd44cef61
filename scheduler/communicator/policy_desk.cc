#include "scheduler/communicator/policy_desk.h"

#include <utility>

namespace cgx::scheduler {

PolicyDesk::PolicyDesk(Policy configured)
    : configured_(std::move(configured)), policy_(configured_) {}

void PolicyDesk::adopt(const Policy& policy, uint64_t version) {
  policy_ = policy;
  version_ = version;
}

uint64_t PolicyDesk::expect(PolicyAnswer answer, uint64_t deadline_ns) {
  tickets_[next_ticket_] = {std::move(answer), deadline_ns};
  return next_ticket_++;
}

PolicyAnswer PolicyDesk::take(uint64_t ticket) {
  auto found = tickets_.extract(ticket);
  return found.empty() ? PolicyAnswer() : std::move(found.mapped().answer);
}

std::vector<PolicyAnswer> PolicyDesk::take_late(uint64_t now_ns) {
  std::vector<PolicyAnswer> late;
  std::erase_if(tickets_, [&](auto& entry) {
    if (now_ns < entry.second.deadline_ns) return false;
    late.push_back(std::move(entry.second.answer));
    return true;
  });
  return late;
}

std::vector<PolicyAnswer> PolicyDesk::take_all() {
  std::vector<PolicyAnswer> all = take_late(UINT64_MAX);
  if (std::optional<Wish> wish = take_wish()) all.push_back(std::move(wish->answer));
  return all;
}

bool PolicyDesk::took_force(const PolicyVersion& version) {
  if (!history_.empty() && history_.back()->version >= version.version) return false;
  if (history_.empty() && version.version > 1) note({1, 0, 0, configured_});
  note(version);
  return true;
}

void PolicyDesk::note(const PolicyVersion& version) {
  constexpr size_t kLaterOnes = 16;
  if (history_.size() > kLaterOnes) history_.erase(history_.begin() + 1);
  history_.push_back(std::make_shared<const PolicyVersion>(version));
}

}  // namespace cgx::scheduler
