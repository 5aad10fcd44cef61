// Communicator: its ranks and machines come together.
#include <algorithm>
#include <map>
#include <optional>

#include "proto/wire/bytes.h"
#include "scheduler/communicator/communicator.h"
#include "scheduler/planners/sound_policy.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kRanksMax = 4096;
constexpr uint64_t kTimeoutMsMax = 365ull * 24 * 3600 * 1000;  // longer means the same

Status check(const wire::CreateCommunicator& message) {
  if (message.name.empty() || message.name.size() > wire::kNameBytesMax) {
    return invalid_argument("communicator name of " + std::to_string(message.name.size()) +
                            " bytes is not in 1.." + std::to_string(wire::kNameBytesMax));
  }
  if (message.members.empty() || message.members.size() > kRanksMax) {
    return invalid_argument("communicator '" + message.name + "' of " +
                            std::to_string(message.members.size()) + " ranks is not in 1.." +
                            std::to_string(kRanksMax));
  }
  if (message.rank >= message.members.size()) {
    return invalid_argument("rank " + std::to_string(message.rank) + " of communicator '" +
                            message.name + "' is not below its size " +
                            std::to_string(message.members.size()));
  }
  return {};
}

const char* where(bool on_gpu) {
  return on_gpu ? " on a GPU" : " on the host";
}

bool on_gpu(const wire::Member& member) {
  return member.device != wire::DeviceId{};
}

// On each machine: all ranks have their tensors on GPUs, or none.
Status check_sites(const wire::CreateCommunicator& message, const std::string& title) {
  struct Firsts {
    std::optional<uint32_t> of[2];  // the first rank on the host, and on a GPU
  };
  std::map<wire::InstanceId, Firsts> machines;
  for (uint32_t rank = 0; rank < message.members.size(); ++rank) {
    const wire::Member& member = message.members[rank];
    std::optional<uint32_t>& first = machines[member.instance].of[on_gpu(member)];
    if (!first) first = rank;
  }
  for (uint32_t rank = 0; rank < message.members.size(); ++rank) {
    const bool there = on_gpu(message.members[rank]);
    const std::optional<uint32_t> other = machines[message.members[rank].instance].of[!there];
    if (!other) continue;
    return {StatusCode::kMISMATCH,
            "rank " + std::to_string(rank) + " of " + title + " has its tensors" + where(there) +
                ", another rank of this machine" + where(!there) + ": rank " +
                std::to_string(*other) + "; all must have them on the host, or all on GPUs" +
                (message.staged.empty() ? "" : " (" + message.staged + ")")};
  }
  return {};
}

Members make_members(const SessionOptions& session, const wire::CreateCommunicator& message) {
  Members members;
  members.job = session.job;
  members.uid = session.uid;
  members.holder = session.holder;
  members.name = message.name;
  wire::Writer identity;
  identity.put(message.job_key);
  identity.put_string(message.name);
  identity.put(message.meeting);
  members.id = wire::checksum(identity.take());
  std::map<std::pair<wire::InstanceId, wire::DeviceId>, uint32_t> machines;
  for (uint32_t rank = 0; rank < message.members.size(); ++rank) {
    const wire::Member& member = message.members[rank];
    const auto [known, fresh] =
        machines.try_emplace({member.instance, member.device}, members.machines());
    const uint32_t machine = known->second;
    if (fresh) {
      members.instances.push_back(member.instance);
      members.addresses.push_back(member.mesh_address);
      members.devices.push_back(member.device);
      members.lowest_rank.push_back(rank);
    }
    members.machine_of_rank.push_back(machine);
  }
  members.machine = members.machine_of_rank[message.rank];
  for (uint32_t rank = 0; rank < members.ranks(); ++rank) {
    if (members.machine_of_rank[rank] == members.machine) members.local.push_back({.rank = rank});
  }
  return members;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(const SessionOptions& session,
                                                           const wire::CreateCommunicator& message,
                                                           SiteId site, CommunicatorPort& port) {
  CGX_RETURN_IF_ERROR(check(message));
  const EngineOptions& options = port.options();
  if (message.members[message.rank].instance != options.instance) {
    return invalid_argument("rank " + std::to_string(message.rank) + " of communicator '" +
                            message.name +
                            "' is listed with another daemon than the one it is connected to");
  }
  Members members = make_members(session, message);
  CGX_RETURN_IF_ERROR(check_sites(message, members.title()));
  if ((members.devices[members.machine] != wire::DeviceId{}) != (site != kHostSite)) {
    return Status(StatusCode::kMISMATCH,
                  "rank " + std::to_string(message.rank) + " of " + members.title() +
                      " names an arena" + where(site != kHostSite) +
                      " and says that its tensors lie" + where(site == kHostSite));
  }
  members.site = site;
  if (!members.alone() && options.mesh_address.empty()) {
    return Status(StatusCode::kUNAVAILABLE,
                  "communicator '" + message.name + "' spans " +
                      std::to_string(members.machines()) +
                      " machines, but this daemon has no mesh address (mesh.listen is not set)");
  }
  const SlabCounts slabs =
      CallRunner::slabs_needed(members, port.site(site), port.slabs(site)->slab_bytes());
  const uint64_t bytes = slabs.sum() * port.slabs(site)->slab_bytes();
  if (const Status room = port.plan_share().check(members.holder, bytes); !room.ok()) {
    return resource_exhausted("calls of communicator '" + message.name + "' need " +
                              std::to_string(bytes) + " bytes; " + room.message());
  }
  std::unique_ptr<Communicator> made(new Communicator(std::move(members), message, port));
  CGX_RETURN_IF_ERROR(made->reserve_for_calls(slabs));
  made->timeout_ns_ = message.timeout_ms != 0
                          ? std::min(message.timeout_ms, kTimeoutMsMax) * 1'000'000
                          : options.timeouts.communicator_ns;
  return made;
}

// Where another process has to take their memory, nobody has joined before it has.
Status Communicator::reserve_for_calls(const SlabCounts& slabs) {
  call_slabs_ = slabs;
  const std::shared_ptr<SlabStore> store = port_.slabs(members_.site);
  calls_wait_for_memory_ = store->asks();
  if (!calls_wait_for_memory_) {
    const Status reserved = pool_.reserve(slabs);
    if (!reserved.ok()) call_slabs_ = {};
    return reserved;
  }
  const auto promise = std::make_shared<SlabStore::Promise>();
  run_apart(
      [store, promise, count = slabs.sum()]() -> Status {
        CGX_ASSIGN_OR_RETURN(*promise, SlabStore::promise(store, count));
        return {};
      },
      [this, promise](const Status& promised) {
        const Status reserved = promised.ok() ? pool_.reserve(call_slabs_) : promised;
        promise->reset();
        if (!reserved.ok()) {
          const std::string what = "frame buffers of calls of " + members_.title() + ": ";
          return fail({reserved.code(), what + reserved.message()}, Scope::kCommunicator);
        }
        calls_wait_for_memory_ = false;
        join_if_complete();
      });
  return {};
}

void Communicator::join(const Requester& from, const wire::CreateCommunicator& message) {
  const auto refuse_join = [&](const Status& status) {
    from.port->reply(from.request, {status.code(), status.message()});
  };
  if (state_ == State::kFailed) return refuse_join(failure_);
  const auto found =
      std::find_if(members_.local.begin(), members_.local.end(),
                   [&](const LocalRank& local) { return local.rank == message.rank; });
  if (found == members_.local.end()) {
    return refuse_join(invalid_argument("rank " + std::to_string(message.rank) + " of " +
                                        members_.title() + " does not belong to this machine" +
                                        kAnotherJob));
  }
  if (found->port != nullptr || state_ != State::kJoining) {
    return refuse_join(is_alive(message.rank));
  }
  const Status same = joining_.compare(message);
  if (!same.ok()) {
    refuse_join(same);
    // With the same key it is one of us: nobody need wait for a rank that will not come.
    if (message.job_key == joining_.job_key()) fail(same, Scope::kCommunicator);
    return;
  }
  if (from.site != members_.site) {
    const Status apart(StatusCode::kMISMATCH, "rank " + std::to_string(message.rank) + " of " +
                                                  members_.title() +
                                                  " has its tensors elsewhere than " +
                                                  members_.machine_name(members_.machine));
    refuse_join(apart);
    return fail(apart, Scope::kCommunicator);
  }
  if (members_.staged.empty()) members_.staged = message.staged.substr(0, wire::kNameBytesMax);
  *found = {message.rank, from.session, from.port, message.comm};
  local_[static_cast<size_t>(found - members_.local.begin())].join_request = from.request;
  join_if_complete();
}

bool Communicator::has(uint32_t rank) const {
  if (rank >= members_.ranks() || state_ == State::kFailed || state_ == State::kClosed)
    return false;
  const uint32_t machine = members_.machine_of_rank[rank];
  if (machine != members_.machine) {
    return state_ != State::kJoining && !peers_[machine].departed &&
           std::none_of(left_.begin(), left_.end(),
                        [&](const Left& gone) { return gone.rank == rank; });
  }
  return std::any_of(members_.local.begin(), members_.local.end(), [&](const LocalRank& local) {
    return local.rank == rank && local.port != nullptr;
  });
}

Status Communicator::is_alive(uint32_t rank) const {
  return {StatusCode::kALREADY_EXISTS, "rank " + std::to_string(rank) + " of " + members_.title() +
                                           " has already joined and is alive" + kAnotherJob};
}

Status Communicator::is_gone(uint32_t rank, const std::string& why) const {
  return {StatusCode::kRANK_LOST,
          "rank " + std::to_string(rank) + " of " + members_.title() + " is gone: " + why};
}

void Communicator::miss_rank(uint32_t rank, const std::string& why) {
  const bool awaited =
      state_ == State::kJoining &&
      std::any_of(members_.local.begin(), members_.local.end(), [&](const LocalRank& local) {
        return local.rank == rank && local.port == nullptr;
      });
  if (awaited) fail(is_gone(rank, why), Scope::kCommunicator);
}

bool Communicator::gives_way_to(const wire::CreateCommunicator& message) {
  if (joining_.forget_at_ns() == 0 || joining_.same_meeting(message)) return false;
  state_ = State::kClosed;
  return true;
}

// All local ranks are here and all links are up: tell the coordinator.
void Communicator::join_if_complete() {
  if (state_ != State::kJoining || !joining_.complete_here(peers_)) return;
  if (calls_wait_for_memory_) return;
  joining_.say_joined();
  if (members_.coordinator()) {
    all_joined();
  } else {
    repeat_join();
  }
}

// The other end of a link may come up after ours and not know us yet: say it until heard. Who has
// failed answers with the failure; to learn of it is all that the coordinator's own word is for.
void Communicator::repeat_join() {
  if (!joining_.said_joined()) return;
  const Join join = joining_.message(port_.residuals().mark(owner()));
  if (members_.coordinator()) return broadcast(join);
  send_control(0, join);
}

void Communicator::handle(uint32_t machine, const Join& message) {
  if (!members_.coordinator() || state_ != State::kJoining) return;
  const Status same = joining_.take(machine, message);
  if (!same.ok()) return fail(same, Scope::kCommunicator);
  all_joined();
}

void Communicator::all_joined() {
  if (!joining_.all_joined()) return;
  const ResidualMark kept = port_.residuals().mark(owner());
  const bool keep = joining_.all_keep(kept);
  feedback_begins_ = joining_.feedback_begins(kept);
  state_ = State::kReady;
  record({.kind = EventKind::kready});
  broadcast(Joined{.configured = desk_.configured(), .keep_residuals = keep});
  begin_with_residuals(keep);
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].join_request, {});
  replay_early();
}

void Communicator::handle(uint32_t machine, const Joined& message) {
  if (machine != 0 || state_ != State::kJoining) return;
  if (const Status sound = check_sound(message.configured); !sound.ok()) {
    return fail({StatusCode::kMISMATCH, members_.machine_name(0) +
                                            " is configured to a policy that this daemon does "
                                            "not understand: " +
                                            sound.message()},
                Scope::kCommunicator);
  }
  desk_.configure(message.configured);
  state_ = State::kReady;
  record({.kind = EventKind::kready});
  begin_with_residuals(message.keep_residuals != 0);
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].join_request, {});
  replay_early();
}

// What this machine keeps of the communicator's life before is gone on with, or of no use.
void Communicator::begin_with_residuals(bool keep) {
  std::optional<KeptResiduals> kept = port_.residuals().take(owner());
  if (!kept) return;
  const uint64_t bytes = kept->residuals.bytes();
  port_.note(EventLevel::kInfo,
             keep ? "error feedback goes on with what was kept"
                  : "error feedback begins at zero: not every machine kept the same step's",
             {{"job", members_.job},
              {"communicator", members_.name},
              {"step", kept->mark.step_end - 1},
              {"bytes", bytes}});
  if (keep) return steps_.begin_with(std::move(*kept));
  port_.release(kept->residuals.take_all());
}

}  // namespace cgx::scheduler
