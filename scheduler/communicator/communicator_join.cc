// Communicator, the part before steps run: joining, registering, committing.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "proto/wire/bytes.h"
#include "scheduler/communicator/communicator.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kRanksMax = 4096;

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
                std::to_string(*other) + "; all must have them on the host, or all on GPUs"};
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

// The plan that the history has, for the table that is here.
PlanQuestion repeat_plan(const PlanEntry& entry, const std::shared_ptr<const TensorTable>& table) {
  return {.table = table,
          .policy = entry.policy,
          .epoch = entry.plan.epoch,
          .encoded_plan = encode_plan(entry.plan)};
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
  CGX_RETURN_IF_ERROR(made->pool_.reserve(slabs));
  made->call_slabs_ = slabs;
  made->timeout_ns_ =
      message.timeout_ms != 0 ? message.timeout_ms * 1'000'000 : options.timeouts.communicator_ns;
  return made;
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
                                        members_.title() + " does not belong to this machine"));
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
                                           " has already joined and is alive"};
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
  const bool keep = joining_.all_keep(port_.residuals().mark(owner()));
  state_ = State::kReady;
  record({.kind = EventKind::kready});
  broadcast(Joined{.configured = desk_.configured(), .keep_residuals = keep});
  begin_with_residuals(keep);
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].join_request, {});
  replay_early();
}

void Communicator::handle(uint32_t machine, const Joined& message) {
  if (machine != 0 || state_ != State::kJoining) return;
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

namespace {

// When it comes, not when it is used: until then it is kept.
Status check_description(const wire::TensorDescription& tensor, uint32_t rank) {
  const std::string of_rank = " of rank " + std::to_string(rank);
  if (tensor.shape.size() > wire::kShapeDimsMax || tensor.name.size() > wire::kNameBytesMax) {
    return invalid_argument("tensor '" + tensor.name.substr(0, 64) + "'" + of_rank +
                            " has more than 8 dimensions or a name above 512 bytes");
  }
  if (!dtype_known(static_cast<uint8_t>(tensor.dtype)) || tensor.op > ReduceOp::kAvg ||
      tensor.kind != wire::TensorKind::kDense) {
    return invalid_argument("tensor '" + tensor.name + "'" + of_rank +
                            " has an unknown dtype, operation or kind");
  }
  if (tensor.op == ReduceOp::kAvg && !dtype_is_small_float(tensor.dtype) &&
      tensor.dtype != DType::kF64) {
    return invalid_argument("tensor '" + tensor.name + "'" + of_rank +
                            ": avg is defined for floating types, not for " +
                            std::string(dtype_name(tensor.dtype)));
  }
  return {};
}

}  // namespace

// What is kept of it counts as memory of plans: many tensors with long names are many bytes.
void Communicator::register_tensors(uint32_t local, wire::RegisterTensors message) {
  if (state_ == State::kFailed) return;  // who commits is told
  LocalState& state = local_[local];
  const std::string who = "rank " + std::to_string(members_.local[local].rank);
  if (message.first != state.tensors.size()) {
    return fail(resource_exhausted(who + " registers tensor " + std::to_string(message.first) +
                                   " next, after " + std::to_string(state.tensors.size())),
                Scope::kCommunicator);
  }
  const size_t count = state.tensors.size() + message.tensors.size();
  if (count > port_.options().limits.tensors) {
    return fail(resource_exhausted(who + " registers " + std::to_string(count) +
                                   " tensors or more; limits.tensors of its daemon is " +
                                   std::to_string(port_.options().limits.tensors)),
                Scope::kCommunicator);
  }
  for (const wire::TensorDescription& tensor : message.tensors) {
    const Status status = check_description(tensor, members_.local[local].rank);
    if (!status.ok()) return fail(status, Scope::kCommunicator);
  }
  const uint64_t bytes = Registration::bytes_of(message.tensors);
  if (const Status room = port_.plan_share().check(members_.holder, bytes); !room.ok()) {
    state.tensors = {};
    return fail(resource_exhausted("what rank " + std::to_string(members_.local[local].rank) +
                                   " registers needs " + std::to_string(bytes) + " bytes; " +
                                   room.message()),
                Scope::kCommunicator);
  }
  state.tensors.add(std::move(message.tensors));
}

void Communicator::commit(uint32_t local, uint32_t request, const wire::Commit& message) {
  LocalState& state = local_[local];
  Status status;
  if (state_ == State::kFailed) {
    status = failure_;
  } else if (state_ == State::kJoining || state_ == State::kClosed) {
    status = Status(StatusCode::kBUSY, members_.title() + " is " + state_name(state_));
  } else if (state.commit_request != 0) {
    status = Status(StatusCode::kBUSY, "rank " + std::to_string(members_.local[local].rank) +
                                           " is committing already");
  } else if (!steps_.idle()) {
    status = Status(StatusCode::kSTEP_OPEN,
                    "step " + std::to_string(steps_.step()) + " is open; commit between steps");
  } else if (message.tensors != state.tensors.size()) {
    status = protocol_error("commit of " + std::to_string(message.tensors) + " tensors, " +
                            std::to_string(state.tensors.size()) + " are registered");
  }
  if (!status.ok()) {
    members_.local[local].port->reply(request, {status.code(), status.message()});
    return;
  }
  state.commit_request = request;
  state.committed = true;
  check_left();
  if (state_ != State::kFailed) commit_if_complete();
}

// `work` names nothing of this object: it runs where plans are made.
void Communicator::run_apart(std::function<Status()> work,
                             std::function<void(const Status&)> then) {
  const auto came_to = std::make_shared<Status>();
  port_.planner().run([came_to, work = std::move(work)] { *came_to = work(); },
                      [came_to, then = std::move(then), alive = std::weak_ptr(alive_), this] {
                        if (!alive.expired() && living()) then(*came_to);
                      });
}

std::vector<RegisteredBy> Communicator::registered() const {
  std::vector<RegisteredBy> ranks;
  for (uint32_t i = 0; i < local_.size(); ++i) {
    const LocalRank& rank = members_.local[i];
    RegisteredBy& by = ranks.emplace_back(RegisteredBy{rank.rank, local_[i].tensors, {}});
    for (uint32_t arena = 0; arena < wire::kArenasMax; ++arena) {
      const auto known = port_.arena(rank.session, arena);
      by.arena_bytes.push_back(known.site == members_.site ? known.bytes : 0);
    }
  }
  return ranks;
}

void Communicator::commit_if_complete() {
  for (const LocalState& state : local_) {
    if (!state.committed) return;
  }
  for (LocalState& state : local_) state.committed = false;
  const auto made = std::make_shared<CommitTable>();
  run_apart(
      [made, ranks = registered(), member = !members_.coordinator()]() -> Status {
        CGX_ASSIGN_OR_RETURN(*made, make_table(ranks));
        if (member) made->encoded = encode_control(Table{std::move(made->encoded)});
        return {};
      },
      [this, made](const Status& same) {
        if (!same.ok()) return fail(same, Scope::kCommunicator);
        take_table(*made);
      });
}

// Of this machine's ranks; a member's is encoded as the message to its coordinator.
void Communicator::take_table(CommitTable& made) {
  pending_ = std::move(made.table);
  if (!members_.coordinator()) return send_body(0, made.encoded);
  tables_[0] = std::move(made.encoded);
  plan_if_tables_complete();
}

// The table in force and its plan stay; the ranks may register more or commit again.
void Communicator::refuse_commit(const Status& why) {
  pending_.reset();
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].commit_request, why);
}

void Communicator::handle(uint32_t machine, Table&& message) {
  if (!members_.coordinator()) return;
  tables_[machine] = std::move(message.table);
  plan_if_tables_complete();
}

void Communicator::plan_if_tables_complete() {
  for (const std::vector<std::byte>& table : tables_) {
    if (table.empty()) return;
  }
  const auto tables = std::make_shared<std::vector<std::vector<std::byte>>>(members_.machines());
  tables_.swap(*tables);
  run_apart(
      [members = members_, ours = pending_, tables] {
        const Status same = compare_tables(members, *ours, *tables);
        tables->clear();  // their memory goes here, too
        return same;
      },
      [this](const Status& same) {
        if (!same.ok()) return fail(same, Scope::kCommunicator);
        if (pending_ != nullptr) commit_plan();
      });
}

Result<PlanQuestion> Communicator::commit_question(uint64_t epoch, uint64_t step) {
  if (replay_.on()) {
    CGX_ASSIGN_OR_RETURN(const PlanEntry* const entry,
                         replay_.next_commit(table_hash(*pending_), step));
    PlanQuestion again = repeat_plan(*entry, pending_);
    again.ranks_wait = true;
    return again;
  }
  return PlanQuestion{.table = pending_,
                      .policy = desk_.policy(),
                      .epoch = epoch,
                      .policy_version = desk_.version(),
                      .order = reverse_registration(pending_->size()),
                      .groups = groups_of_profile(),
                      .ranks_wait = true};
}

void Communicator::commit_plan() {
  const uint64_t step = steps_.installed() ? steps_.step() : joining_.first_step();
  agreement_.propose(
      PlanPurpose::kCommit, /*dry_run=*/false, step,
      [this, step](uint64_t epoch) { return commit_question(epoch, step); },
      [this](const Result<PlanAgreement::Outcome>& outcome) {
        if (!outcome.ok()) return refuse_commit(outcome.status());  // else install_committed did
        if (replay_.on()) replay_.advance();
      });
}

StepRunner::Homes Communicator::homes() const {
  StepRunner::Homes homes(local_.size());
  for (uint32_t i = 0; i < local_.size(); ++i) {
    std::array<ArenaId, wire::kArenasMax> arenas;
    for (uint32_t arena = 0; arena < arenas.size(); ++arena) {
      arenas[arena] = port_.arena(members_.local[i].session, arena).id;
    }
    const auto add = [&](const wire::TensorDescription& tensor) {
      const bool known = tensor.home_arena < arenas.size();  // whoever has no elements may not care
      homes[i].push_back({known ? arenas[tensor.home_arena] : kNoArena, tensor.home_offset});
    };
    homes[i].reserve(local_[i].tensors.size());
    local_[i].tensors.for_each(add);
  }
  return homes;
}

void Communicator::install_committed(const PlanAgreement::PlanPtr& plan, uint64_t first_step) {
  if (state_ != State::kFrozen) state_ = State::kRunning;
  ++commits_;
  table_ = plan->table;
  pending_.reset();
  agreement_.note_switch(plan, first_step);
  if (!members_.coordinator()) desk_.adopt(plan->policy, plan->plan.policy_version);
  took_force(*plan, first_step);
  if (commits_ == 1) {
    port_.note(EventLevel::kInfo, "communicator is ready",
               {{"job", members_.job},
                {"communicator", members_.name},
                {"ranks", members_.ranks()},
                {"machines", members_.machines()},
                {"tensors", table_->size()}});
  }
  meter_.begin(table_->size());
  steps_.install(plan, first_step, homes());
  keep_history(PlanPurpose::kCommit, *plan, first_step);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].commit_request, {}, plan->plan.epoch, first_step);
  }
}

// After two steps it is known from which end gradients come, and which do not.
void Communicator::reorder_if_useful() {
  if (reordered_ || replay_.on() || !members_.coordinator() || !steps_.installed() ||
      steps_.completed_end() < joining_.first_step() + 2 || agreement_.proposing() ||
      desk_.wish() || pending_ || agreement_.announced_epoch() != 0) {
    return;
  }
  reordered_ = true;
  const std::vector<uint32_t> order = shared_order(steps_.last_order(), steps_.last_absent());
  const bool fine = order == running_order() || begins_with_profile_;
  if (order.size() != table_->size() || fine) return;
  agreement_.propose(
      PlanPurpose::kPlanner, /*dry_run=*/false, 0,
      [this, order](uint64_t epoch) -> Result<PlanQuestion> {
        return question_of_own(epoch, order);
      },
      [](const Result<PlanAgreement::Outcome>&) {});
}

void Communicator::keep_history(PlanPurpose purpose, const PreparedPlan& plan, uint64_t step) {
  PlanLog* const log = members_.coordinator() ? port_.plan_log() : nullptr;
  if (log == nullptr || plan.plan.epoch <= kept_epoch_) return;  // a plan on trial: said once
  kept_epoch_ = plan.plan.epoch;
  log->took_force({members_.job, members_.name, step, purpose, plan.policy, plan.plan});
}

// No step starts before the plan that is to govern the one behind it is announced.
bool Communicator::must_wait_for_replay() const {
  const PlanEntry* const entry = members_.coordinator() ? replay_.next() : nullptr;
  return entry != nullptr && entry->purpose != PlanPurpose::kCommit && steps_.installed() &&
         entry->step <= steps_.step() + 1;
}

void Communicator::replay_next_plan() {
  const PlanEntry* const entry = members_.coordinator() ? replay_.next() : nullptr;
  if (entry == nullptr || entry->purpose == PlanPurpose::kCommit || !steps_.installed() ||
      agreement_.proposing() || pending_) {
    return;
  }
  const auto fail_replay = [this, entry](const Status& why) {
    fail({why.code(), "the plan of step " + std::to_string(entry->step) + " of " +
                          members_.title() + " cannot be repeated: " + why.message()},
         Scope::kCommunicator);
  };
  agreement_.propose(
      PlanPurpose::kPolicy, /*dry_run=*/false, entry->step,
      [this, entry](uint64_t) -> Result<PlanQuestion> { return repeat_plan(*entry, table_); },
      [this, entry, fail_replay](const Result<PlanAgreement::Outcome>& outcome) {
        if (state_ == State::kFailed || state_ == State::kClosed) return;
        if (!outcome.ok()) return fail_replay(outcome.status());
        if (outcome->switch_step != entry->step) {
          return fail_replay({StatusCode::kSTEP_ORDER, "it would take force at step " +
                                                           std::to_string(outcome->switch_step)});
        }
        desk_.adopt(entry->policy, entry->plan.policy_version);
        replay_.advance();
      });
}

}  // namespace cgx::scheduler
