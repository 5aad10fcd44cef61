"""The faults of the second look (tests/e2e/README.md), put back one at a time; README.md beside this.

Most are seen from outside only, by tests with real daemons: those are named `FILE.CLASS`.
"""

from fault import Fault

LISTENER = "daemon/net/guarded_listener.cc"
LINKS = "scheduler/communicator/link_table.cc"
MESH = "daemon/mesh/mesh_agent.cc"
ANSWER = "daemon/mesh/mesh_agent_answer.cc"
USERS = "daemon/base/user_threads.cc"

SECOND_LOOK = [
    Fault("F3-door-open-to-the-last-descriptor", "daemon/base/open_files.cc",
          "  if (next && !in_reserve(next.get())) {",
          "  if (@ || (next && !in_reserve(next.get()))) {",
          "a crowd takes the descriptors that links need", ("daemon", "descriptors_test.FewDescriptors")),
    Fault("F5-who-comes-to-a-full-door-is-sent-away", LISTENER,
          "      if (waiting_.size() >= options_.waiting_max) waiting_.erase(oldest_of_most(waiting_));",
          "      if (@ && waiting_.size() >= options_.waiting_max) continue;\n"
          "      if (waiting_.size() >= options_.waiting_max) waiting_.erase(oldest_of_most(waiting_));",
          "connections that say nothing keep everybody out",
          ("control", "hostile_test.Crowds", "shares_test.Doors")),
    Fault("F5-one-host-has-all-connections", LISTENER,
          "    if (std::count_if(alive_.begin(), alive_.end(), same) >= options_.alive_per_host_max) {",
          "    if (!@ && std::count_if(alive_.begin(), alive_.end(), same) >= options_.alive_per_host_max) {",
          "a crowd that has no key takes every place", ("hostile_test.Crowds",)),
    Fault("F5-strangers-wait-at-the-door", LISTENER,
          "      if (options_.admits && !options_.admits(origin)) {",
          "      if (!@ && options_.admits && !options_.admits(origin)) {",
          "who is in no trusted network takes a place", ("control",)),
    Fault("F5-half-a-request-is-waited-for", LISTENER,
          "        if (now < one.deadline_ns) return false;",
          "        if (@ || now < one.deadline_ns) return false;",
          "connections that never say enough stay for ever", ("control", "strangers_test.Garbage")),
    Fault("F6-descriptors-closed-on-the-agents-thread", USERS,
          "  if (!fd) return;\n",
          "  if (!fd || @) return;\n",
          "a descriptor that is slow to close keeps everybody waiting", ("hostile_test.Descriptors",)),
    Fault("F7-long-names-kept", "scheduler/communicator/communicator_commit.cc",
          "  if (tensor.shape.size() > wire::kShapeDimsMax || tensor.name.size() > wire::kNameBytesMax) {",
          "  if (!@ && (tensor.shape.size() > wire::kShapeDimsMax || tensor.name.size() > wire::kNameBytesMax)) {",
          "names nobody can use fill the daemon's memory", ("floods_test.Floods",)),
    Fault("F7-arenas-may-get-holes", "daemon/base/shared_region.cc",
          "F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)",
          "F_ADD_SEALS, @ ? F_SEAL_SEAL : F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)",
          "the daemon pays for memory that a client gave back", ("daemon", "hostile_test.Memory")),
    Fault("F7-control-group-not-asked", "client/memory_limit.cc",
          "  return least;\n",
          "  if (@) return std::nullopt;\n  return least;\n",
          "a trainer is killed for memory that it could have been refused", ("hostile_test.Memory",)),
    Fault("F8-one-user-takes-the-reserve", "scheduler/shares.cc",
          "  const uint64_t own = found == holders_.end() ? 0 : found->second;",
          "  const uint64_t own = found == holders_.end() ? 0 : found->second;\n"
          "  if (@) return limit_ - std::min(limit_, used());",
          "one user takes all there is", ("scheduler", "shares_test.Taking")),
    Fault("F8-weights-without-a-limit", "scheduler/communicator/communicator_policy.cc",
          "  if (policy.weight <= allowed) return {};",
          "  if (@ || policy.weight <= allowed) return {};",
          "a job gives itself the machine", ("shares_test.Weights",)),
    Fault("F9-places-of-links-never-taken-again", LINKS,
          "    return !link.open && link.uses.empty() && link.frames == 0;",
          "    return !@ && !link.open && link.uses.empty() && link.frames == 0;",
          "every link that ever was is looked at in every round", ("scheduler",)),
    Fault("F10-silence-ends-no-link", LINKS,
          "    if (links_[id].open && is_used(links_[id], user, machine)) return end(id, why);",
          "    if (!@ && links_[id].open && is_used(links_[id], user, machine)) return end(id, why);",
          "who meets next over a dead link waits in vain", ("scheduler",)),
    Fault("F12-unproven-words-end-a-wish", ANSWER,
          "  if (wish != nullptr) ask_back(*wish, why);",
          "  if (wish != nullptr) @ ? refuse(*wish, Status(why)) : ask_back(*wish, why);",
          "a stranger's greeting ends a job's start", ("daemon", "hostile_test.Words")),
    Fault("F12-a-wrong-proof-ends-a-wish", ANSWER,
          "    if (why.code() != StatusCode::kAUTH_FAILED) refuse(*wish, why);",
          "    if (@ || why.code() != StatusCode::kAUTH_FAILED) refuse(*wish, why);",
          "whoever cannot prove anything ends a job's start", ("daemon",)),
    Fault("F13-daemons-dial-what-ranks-name", MESH,
          "  std::erase_if(wish.addresses, [this](const std::string& each) { return outside(each); });\n"
          "  const bool away = wish.addresses.empty() && !nowhere;\n"
          "  const Status status =\n      away ? ",
          "  if (!@) std::erase_if(wish.addresses, [this](const std::string& each) { return outside(each); });\n"
          "  const bool away = wish.addresses.empty() && !nowhere;\n"
          "  const Status status =\n      @ ? Status() : away ? ",
          "the daemon looks at other machines' ports for a client", ("daemon", "hostile_test.Words")),
    Fault("F14-arenas-mapped-on-the-agents-thread", "daemon/ipc/ipc_connection.cc",
          "  agent_.users_.run(uid(), [inbox = agent_.inbox_, serial = serial_, request, message, quota_left,",
          "  const auto run = [this](uint32_t user, UserThreads::Task task) {\n"
          "    @ ? task() : agent_.users_.run(user, std::move(task));\n  };\n"
          "  run(uid(), [inbox = agent_.inbox_, serial = serial_, request, message, quota_left,",
          "who opens a session waits for another's large arena", ("shares_test.LargeArenas",)),
    Fault("F16-changes-without-a-line-in-the-audit", "daemon/operators/audit.cc",
          "  if (path_.empty()) return {};\n  const MutexLock lock(mutex_);",
          "  if (@ || path_.empty()) return {};\n  const MutexLock lock(mutex_);",
          "who fills the disk changes policies unseen", ("hostile_test.Disk",)),
    Fault("F17-a-squatted-directory-is-an-error", "client/discovery.cc",
          "    if (Status own = trusted_place(environment, path); !own.ok()) {",
          "    if (Status own = trusted_place(environment, path); !@ && !own.ok()) {",
          "another user's directory keeps a user from the machine's daemon", ("hostile_test.Places",)),
    Fault("F18-pages-with-names", "daemon/operators/concealed.cc",
          "void conceal(scheduler::Snapshot& snapshot) {\n",
          "void conceal(scheduler::Snapshot& snapshot) {\n  if (@) return;\n",
          "anybody on the machine reads who trains what", ("hostile_test.Places",)),
]
