// Communicator: ranks register and commit tensors, and which plan follows, until it is in force.
#include <algorithm>
#include <array>

#include "scheduler/communicator/communicator.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

constexpr uint32_t kReorderTries = 3;

// The plan that the history has, for the table that is here.
PlanQuestion repeat_plan(const PlanEntry& entry, const std::shared_ptr<const TensorTable>& table) {
  return {.table = table,
          .policy = entry.policy,
          .epoch = entry.plan.epoch,
          .encoded_plan = encode_plan(entry.plan),
          .origin = repeated(entry.origin)};
}

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
  keep_table(0, std::move(made.encoded));
}

// The table in force and its plan stay; the ranks may register more or commit again.
void Communicator::refuse_commit(const Status& why) {
  pending_.reset();
  has_table_.assign(members_.machines(), false);
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].commit_request, why);
}

void Communicator::handle(uint32_t machine, Table&& message) {
  if (!members_.coordinator()) return;
  if (has_all_tables()) return count(Counter::kframes_unexpected, 1);  // it is none of the next's
  const auto known = std::find_if(tables_.begin(), tables_.end(),
                                  [](const EncodedTable& table) { return table != nullptr; });
  if (known == tables_.end()) return keep_table(machine, std::move(message.table));
  if (**known == message.table) return keep_table(machine, *known);
  const Status room = port_.plan_share().check(members_.holder, message.table.size());
  if (room.ok()) return keep_table(machine, std::move(message.table));
  fail({room.code(), "the tensor table of " + members_.machine_name(machine) +
                         ", which is another than the one known, finds no room: " + room.message()},
       Scope::kCommunicator);
}

bool Communicator::has_all_tables() const {
  return std::find(has_table_.begin(), has_table_.end(), false) == has_table_.end();
}

void Communicator::keep_table(uint32_t machine, std::vector<std::byte> table) {
  keep_table(machine, std::make_shared<const std::vector<std::byte>>(std::move(table)));
}

void Communicator::keep_table(uint32_t machine, EncodedTable table) {
  tables_[machine] = std::move(table);
  has_table_[machine] = true;
  if (has_all_tables()) plan_tables();
}

void Communicator::plan_tables() {
  const auto tables = std::make_shared<std::vector<EncodedTable>>(members_.machines());
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
  PlanQuestion question{.table = pending_,
                        .policy = desk_.policy(),
                        .epoch = epoch,
                        .policy_version = desk_.version(),
                        .order = reverse_registration(pending_->size()),
                        .groups = groups_of_profile(),
                        .ranks_wait = true};
  if (!ceilings_.ceilings().empty()) {
    question.ceilings = ceilings_.ceilings_under(desk_.policy(), table_hash(*pending_));
  }
  question.origin = {kByCommit, commits_ == 0 ? "the ranks committed their tensors"
                                              : "the ranks committed tensors again"};
  if (begins_with_profile_) {
    question.origin = {kByEarlierRun, "an earlier run of this name found it the fastest"};
  }
  return question;
}

void Communicator::commit_plan() {
  const uint64_t step = steps_.installed() ? steps_.step() : joining_.first_step();
  agreement_.propose(
      PlanPurpose::kCommit, /*dry_run=*/false, step,
      [this, step](uint64_t epoch) { return commit_question(epoch, step); },
      [this](const Result<PlanAgreement::Outcome>& outcome) {
        if (!outcome.ok()) return refuse_commit(outcome.status());
        // Else install_committed() has answered.
        if (!replay_.on()) return;
        if (commits_ == 1) ++port_.replayed({members_.uid, members_.job, members_.name});
        replay_.advance();
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
  has_table_.assign(members_.machines(), false);
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
  profiles_.stop();
  steps_.install(plan, first_step, homes());
  reordered_ = false;
  reorder_tries_ = 0;
  reorder_after_ = first_step + 2;
  keep_history(PlanPurpose::kCommit, *plan, first_step);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].commit_request, {}, plan->plan.epoch, first_step);
  }
}

// After two steps it is known from which end gradients come, and which do not. Another plan may
// have been wanted at the same time, or a machine was slow to answer.
void Communicator::reorder_if_useful() {
  if (reordered_ || replay_.on() || !members_.coordinator() || !steps_.installed() ||
      steps_.completed_end() < reorder_after_ || agreement_.proposing() || desk_.wish() ||
      pending_ || agreement_.announced_epoch() != 0) {
    return;
  }
  reordered_ = true;
  const std::vector<uint32_t> order = shared_order(steps_.last_order(), steps_.last_absent());
  const bool fine = order == running_order() || begins_with_profile_;
  if (order.size() != table_->size() || fine) return;
  agreement_.propose(
      PlanPurpose::kPlanner, /*dry_run=*/false, 0,
      [this, order](uint64_t epoch) -> Result<PlanQuestion> {
        return question_of_own(
            epoch, order, {kByReorder, "gradients come in another order than was planned for"});
      },
      [this](const Result<PlanAgreement::Outcome>& outcome) {
        if (outcome.ok() || ++reorder_tries_ == kReorderTries) return;
        reordered_ = false;
        reorder_after_ = steps_.completed_end() + 1;
      });
}

void Communicator::keep_history(PlanPurpose purpose, const PreparedPlan& plan, uint64_t step) {
  PlanLog* const log = members_.coordinator() ? port_.plan_log() : nullptr;
  if (log == nullptr || plan.plan.epoch <= kept_epoch_) return;  // a plan on trial: said once
  kept_epoch_ = plan.plan.epoch;
  log->took_force({members_.job, members_.name, step, purpose, plan.policy, plan.plan,
                   agreement_.origin_of(plan.plan.epoch)});
}

// No step starts before the plan that is to govern the one behind it is announced.
bool Communicator::must_wait_for_replay() const {
  const PlanEntry* const entry = members_.coordinator() ? replay_.next() : nullptr;
  return entry != nullptr && entry->purpose != PlanPurpose::kCommit && steps_.installed() &&
         entry->step <= steps_.step() + 1;
}

// One is announced at a time, however many the history has: each takes memory from then on. One
// that is not of a later step than the plan before it is refused when it is decided.
void Communicator::replay_next_plan() {
  const PlanEntry* const entry = members_.coordinator() ? replay_.next() : nullptr;
  if (entry == nullptr || entry->purpose == PlanPurpose::kCommit || !steps_.installed() ||
      agreement_.proposing() || pending_) {
    return;
  }
  if (agreement_.announced_epoch() != 0 && agreement_.announced_step() < entry->step) return;
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
