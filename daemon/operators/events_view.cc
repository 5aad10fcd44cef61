#include "daemon/operators/events_view.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/text.h"
#include "daemon/operators/control_view.h"

namespace cgx::daemon {
namespace {

using scheduler::Event;

constexpr size_t kAnswerMax = 65'536;

const CommunicatorSnapshot* owner_of(const Event& event, const Snapshot& snapshot) {
  for (const CommunicatorSnapshot& one : snapshot.communicators) {
    const bool alive = one.created_ns <= event.time_ns;
    if (one.index == event.communicator && alive) return &one;
  }
  return nullptr;
}

std::string number_name(const Event& event) {
  return "#" + std::to_string(event.communicator);
}

// Which events a request is about.
class Wanted {
 public:
  static Result<Wanted> create(const Snapshot& snapshot, const v1::Target& target,
                               const Caller& caller) {
    Wanted wanted(target, caller);
    const bool by_number = caller.is_operator && target.communicator().starts_with("#");
    if (by_number) return wanted;
    CGX_ASSIGN_OR_RETURN(wanted.communicators_, select_all(snapshot, target, caller));
    return wanted;
  }

  bool has(const Event& event, const CommunicatorSnapshot* owner) const {
    if (owner != nullptr) {
      return std::find(communicators_.begin(), communicators_.end(), owner) != communicators_.end();
    }
    const std::string& name = target_.communicator();
    const bool of_somebody = !target_.job().empty() || target_.has_uid();
    return caller_.is_operator && !of_somebody && (name.empty() || name == number_name(event));
  }

 private:
  Wanted(const v1::Target& target, const Caller& caller) : target_(target), caller_(caller) {}

  const v1::Target& target_;
  const Caller& caller_;
  std::vector<const CommunicatorSnapshot*> communicators_;
};

void add_value(std::string_view name, uint64_t value, v1::Event& to) {
  if (name.empty()) return;
  v1::EventValue* const added = to.add_values();
  added->set_name(std::string(name));
  added->set_value(value);
  if (name == "status") added->set_text(std::string(status_name(static_cast<StatusCode>(value))));
}

void fill_event(const Event& from, v1::Event& to) {
  const scheduler::EventRow& row = scheduler::event_row(from.kind);
  const std::string_view where = row.where, peer = row.peer;
  const bool of_call = from.group == Event::kCall;
  to.set_kind(row.name);
  if (!where.empty() && of_call) to.set_call(from.step);
  if (!where.empty() && !of_call) to.set_step(from.step);
  if (where == "operation" && !of_call) to.set_group(from.group);
  if (peer == "rank") to.set_rank(from.peer);
  if (peer == "machine") to.set_machine(from.peer);
  add_value(row.a, from.a, to);
  add_value(row.b, from.b, to);
}

}  // namespace

Result<v1::EventList> events_of(const scheduler::RecorderReader::Reading& reading,
                                const Snapshot& snapshot, const v1::ListEventsRequest& request,
                                const Caller& caller, const ClockPair& now) {
  CGX_ASSIGN_OR_RETURN(const Wanted wanted, Wanted::create(snapshot, request.target(), caller));
  const size_t most =
      request.last() == 0 ? kAnswerMax : std::min<size_t>(request.last(), kAnswerMax);
  v1::EventList list;
  for (size_t i = reading.events.size(); i > 0 && list.events().size() < static_cast<int>(most);
       --i) {
    const Event& event = reading.events[i - 1];
    const CommunicatorSnapshot* const owner = owner_of(event, snapshot);
    if (!wanted.has(event, owner)) continue;
    v1::Event& shown = *list.add_events();
    shown.set_number(reading.first + i - 1);
    shown.set_unix_ns(now.unix_ns - now.monotonic_ns + event.time_ns);
    shown.set_job(owner == nullptr ? "" : config::plain_text(owner->job));
    shown.set_communicator(owner == nullptr ? number_name(event) : config::plain_text(owner->name));
    fill_event(event, shown);
  }
  std::reverse(list.mutable_events()->begin(), list.mutable_events()->end());
  list.set_next(reading.end());
  list.set_lost(reading.first > request.from() ? reading.first - request.from() : 0);
  return list;
}

}  // namespace cgx::daemon
