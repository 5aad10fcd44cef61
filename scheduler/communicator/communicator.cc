#include "scheduler/communicator/communicator.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/submit_record.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
const char* state_name(Communicator::State state) {
  switch (state) {
    case Communicator::State::kJoining:
      return "joining";
    case Communicator::State::kReady:
      return "ready";
    case Communicator::State::kRunning:
      return "running";
    case Communicator::State::kFrozen:
      return "frozen";
    case Communicator::State::kFailed:
      return "failed";
    case Communicator::State::kClosed:
      return "closed";
  }
  return "unknown";
}

Communicator::Communicator(Members members, const wire::CreateCommunicator& first,
                           CommunicatorPort& port)
    : members_(std::move(members)),
      port_(port),
      index_(port.new_index()),
      pool_(port.slabs(members_.site), members_.holder),
      desk_(port.options().job_weights.starting_policy(port.options().policy, members_.job)),
      local_(members_.local.size()),
      attempts_(members_.local.size()),
      joining_(members_, first),
      peers_(members_),
      terms_(members_),
      tables_(members_.machines()),
      has_table_(members_.machines()),
      replay_(port.options().plan_history.get(), members_.job, members_.name,
              port.options().plan_history
                  ? port.replayed({members_.uid, members_.job, members_.name})
                  : 0),
      agreement_(members_, *this),
      steps_(
          {members_, members_.view_of(0), port.site(members_.site), pool_, *this},
          [this](uint64_t step) {
            const PlanAgreement::PlanPtr plan = agreement_.plan_for(step, steps_.plan());
            if (plan == steps_.plan()) return plan;
            keep_history(PlanPurpose::kPolicy, *plan, step);
            took_force(*plan, step);
            return plan;
          },
          [this] {
            return steps_.plan()->facts->hears_coordinator || !agreement_.awaits_decision();
          }),
      calls_({members_, members_.view_of(0), port.site(members_.site), pool_, *this}),
      pilot_(*this, port.options().search),
      profiles_(members_),
      next_tick_ns_(port.now_ns()) {
  created_ns_ = port_.now_ns();
  steps_.measure_losses(ceilings_.losses());
  begin_with_policy();
}

Communicator::~Communicator() {
  if (!calls_wait_for_memory_) pool_.unreserve(call_slabs_);
}

ResidualStore::Owner Communicator::owner() const {
  return {members_.uid, members_.job, members_.name, members_.site};
}

bool Communicator::uses(SessionId session) const {
  return std::any_of(members_.local.begin(), members_.local.end(), [&](const LocalRank& local) {
    return local.session == session && (local.port != nullptr || tickets_open());
  });
}

bool Communicator::operations_open() const {
  return steps_.operations_open() || calls_.operations_open();
}

std::string Communicator::in_flight() const {
  if (!living() || (!operations_open() && steps_.idle())) return {};
  std::string groups, calls;
  for (const auto& operation : steps_.operations()) {
    groups += (groups.empty() ? "" : ", ") + std::to_string(operation->group_index());
  }
  for (const auto& operation : calls_.operations()) {
    calls += (calls.empty() ? "" : ", ") + std::to_string(operation->step());
  }
  std::string text = members_.title();
  if (!steps_.idle()) text += ", step " + std::to_string(step());
  if (!groups.empty()) text += ": groups " + groups;
  if (!calls.empty()) text += ", calls " + calls;
  return groups.empty() && calls.empty() ? text + ": waits for ranks" : text;
}

uint32_t Communicator::weight() const {
  const uint32_t wanted = steps_.installed() ? steps_.plan()->plan.weight : desk_.policy().weight;
  return std::min(wanted, port_.options().limits.weight);
}

uint64_t Communicator::reserved_bytes() const {
  const uint64_t calls = call_slabs_.sum() * pool_.slab_bytes();
  const uint64_t running =
      steps_.installed() ? steps_.plan()->held_bytes() + steps_.plan()->facts->decided_bytes() : 0;
  uint64_t registered = 0;
  for (const LocalState& state : local_) registered += state.tensors.bytes();
  for (auto table = tables_.begin(); table != tables_.end(); ++table) {
    const bool counted = std::find(tables_.begin(), table, *table) != table;
    if (*table != nullptr && !counted) registered += (*table)->size();
  }
  return calls + registered + running + pool_.beyond_bytes() + terms_.early_bytes() +
         steps_.residuals().bytes() + agreement_.reserved_bytes(steps_.plan());
}

Status Communicator::submit(uint32_t local, const cgx_submit_record& record) {
  if (record.kind < CGX_SUBMIT_TENSOR || record.kind > CGX_SUBMIT_CALL) {
    return protocol_error("submit record of unknown kind " + std::to_string(record.kind));
  }
  // To a client the answer to a step's end says that the step's memory is its own again.
  const bool in_use = state_ == State::kFailed && tickets_open();
  if (state_ == State::kFrozen || in_use) return attempts_.hold(local, record);
  const Status status = apply_record(local, record);
  if (status.ok()) {
    check_left();
    return {};
  }
  // A straggler of a failed attempt is told why that failed; the attempt under way goes on.
  const bool fails_step = status.code() == StatusCode::kSTEP_ABANDONED &&
                          record.kind == CGX_SUBMIT_TENSOR &&
                          attempts_.current(local, record.attempt);
  refuse(local, record, status);
  if (!fails_step) return {};
  attempts_.abandon(local, record.step);
  fail(status, Scope::kStep);
  return {};
}

Status Communicator::apply_record(uint32_t local, const cgx_submit_record& record) {
  CGX_RETURN_IF_ERROR(wire::check_built(record));
  if (state_ == State::kFailed || state_ == State::kClosed) return failure_;
  if (state_ == State::kJoining) {
    return {StatusCode::kNOT_COMMITTED, members_.title() + " is still joining"};
  }
  return record.kind == CGX_SUBMIT_CALL ? submit_call(local, record) : submit_tensor(local, record);
}

Status Communicator::submit_tensor(uint32_t local, const cgx_submit_record& record) {
  if (!steps_.installed()) {
    return {StatusCode::kNOT_COMMITTED, members_.title() + " has not been committed"};
  }
  // What became of a complete step does not depend on what failed since.
  if (record.kind == CGX_SUBMIT_STEP_DONE) {
    return steps_.done(local, record.step, record.flags & CGX_STEP_DROPPED);
  }
  CGX_RETURN_IF_ERROR(attempts_.check(local, record.attempt, failure_));
  if (local_[local].commit_request != 0) {  // the table that comes begins the step anew
    return {StatusCode::kBUSY, "rank " + std::to_string(members_.local[local].rank) + " of " +
                                   members_.title() + " is committing; its next step begins then"};
  }
  local_[local].last_step = record.step;
  const double unit = record.gradient_unit == 0 ? 1.0 : record.gradient_unit;
  CGX_RETURN_IF_ERROR(steps_.declare_unit(local, record.step, unit));
  switch (static_cast<cgx_submit_kind>(record.kind)) {
    case CGX_SUBMIT_TENSOR: {
      if (record.tensor >= table_->size()) {
        return {StatusCode::kNOT_COMMITTED, "tensor " + std::to_string(record.tensor) +
                                                " is not in the committed table of " +
                                                std::to_string(table_->size()) + " tensors"};
      }
      const TensorDesc& tensor = (*table_)[record.tensor];
      CGX_ASSIGN_OR_RETURN(const Buffers memory,
                           buffers(local, record, tensor.dtype, tensor.elements));
      return steps_.submit(local, record.step,
                           {record.tensor, memory.input, memory.output, record.cookie});
    }
    case CGX_SUBMIT_ABSENT:
      return steps_.absent(local, record.step, record.tensor, record.cookie);
    case CGX_SUBMIT_STEP_END:
      return steps_.end(local, record.step, record.cookie, port_.now_ns());
    case CGX_SUBMIT_STEP_DONE:
    case CGX_SUBMIT_CALL:
      break;
  }
  return internal_error("not a step record");
}

Status Communicator::submit_call(uint32_t local, const cgx_submit_record& record) {
  if (!dtype_known(record.dtype)) {
    return invalid_argument("dtype " + std::to_string(record.dtype) + " is not known");
  }
  CallRunner::Submission submission;
  submission.descriptor.elements = record.count;
  submission.descriptor.dtype = static_cast<DType>(record.dtype);
  submission.descriptor.op = static_cast<ReduceOp>(record.op);
  const DType dtype = submission.descriptor.dtype;
  if (record.op > static_cast<uint8_t>(ReduceOp::kAvg)) {
    return invalid_argument("op " + std::to_string(record.op) + " is not sum (0) or avg (1)");
  }
  if (submission.descriptor.op == ReduceOp::kAvg && !dtype_is_small_float(dtype) &&
      dtype != DType::kF64) {
    return invalid_argument("avg is defined for floating types, not for " +
                            std::string(dtype_name(dtype)));
  }
  CGX_ASSIGN_OR_RETURN(const Buffers memory, buffers(local, record, dtype, record.count));
  submission.input = memory.input;
  submission.output = memory.output;
  submission.cookie = record.cookie;
  const Status status = calls_.submit(local, record.step, submission, port_.now_ns());
  publish_call_failures();
  return status;
}

Result<Communicator::Buffers> Communicator::buffers(uint32_t local, const cgx_submit_record& record,
                                                    DType dtype, uint64_t elements) const {
  const uint64_t width = dtype_bytes(dtype);
  const auto locate = [&](uint32_t arena, uint64_t offset, const char* what) -> Result<Place> {
    const auto [id, bytes, site] = port_.arena(members_.local[local].session, arena);
    const bool fits =
        elements <= bytes / width && offset <= bytes && elements * width <= bytes - offset;
    if (!fits || offset % width != 0) {
      return invalid_argument(std::string(what) + " of " + std::to_string(elements) + " " +
                              std::string(dtype_name(dtype)) + " at offset " +
                              std::to_string(offset) + " of arena " + std::to_string(arena) +
                              (fits ? " is not aligned to its type"
                                    : " does not fit its " + std::to_string(bytes) + " bytes"));
    }
    if (site != members_.site && elements > 0) return elsewhere(what, arena, site);
    return Place{.arena = id, .offset = offset};
  };
  CGX_ASSIGN_OR_RETURN(Place input, locate(record.in_arena, record.in_offset, "input"));
  CGX_ASSIGN_OR_RETURN(const Place output, locate(record.out_arena, record.out_offset, "output"));
  const uint64_t bytes = elements * width;
  if (input.arena == output.arena && input.offset != output.offset &&
      input.offset < output.offset + bytes && output.offset < input.offset + bytes) {
    return invalid_argument("input and output overlap without being the same");
  }
  if (record.word != 0 && members_.site == kHostSite) {
    return invalid_argument("a timeline word orders tensors on a GPU; these are on the host");
  }
  input.word = record.word;
  input.word_value = record.word_value;
  return Buffers{input, output};
}

// Host and device memory are not mixed within a communicator.
Status Communicator::elsewhere(const std::string& what, uint32_t arena, SiteId site) const {
  const auto name = [](SiteId of) { return of == kHostSite ? "the host" : "a GPU"; };
  return {
      StatusCode::kMISMATCH,
      what + " lies in arena " + std::to_string(arena) + " on " + name(site) +
          ", but the ranks of " + members_.title() + " on this machine have their tensors on " +
          (site != kHostSite && members_.site != kHostSite ? "another GPU" : name(members_.site))};
}

Status Communicator::check_site_takes(const PlanFacts& facts) const {
  const Site& site = port_.site(members_.site);
  for (const Group& group : facts.plan.groups) {
    for (const Segment& segment : group.segments) {
      const TensorDesc& tensor = (*facts.table)[segment.tensor];
      Status taken = site.takes(segment.spec, tensor.dtype);
      if (taken.ok()) taken = site.takes(segment.codec(/*in_rack=*/true), tensor.dtype);
      if (taken.ok()) continue;
      return {taken.code(), "tensor '" + tensor.name + "': " + taken.message()};
    }
  }
  CGX_RETURN_IF_ERROR(site.fits(JobLists{.slices = facts.needs.slices,
                                         .ranks = members_.local_count(),
                                         .contributions = facts.plan.machines}));
  if (facts.needs.decoded_bytes <= site.scratch_bytes()) return {};
  return resource_exhausted("what comes from a rack takes " +
                            std::to_string(facts.needs.decoded_bytes) +
                            " bytes when it is decoded, a GPU's worker has " +
                            std::to_string(site.scratch_bytes()) + "; rack_codec fp32 takes none");
}

void Communicator::refuse(uint32_t local, const cgx_submit_record& record, const Status& why) {
  cgx_completion_record answer{};
  switch (static_cast<cgx_submit_kind>(record.kind)) {
    case CGX_SUBMIT_TENSOR:
    case CGX_SUBMIT_ABSENT:
      answer.kind = CGX_COMPLETE_TENSOR;
      break;
    case CGX_SUBMIT_STEP_END:
      answer.kind = CGX_COMPLETE_STEP;
      break;
    case CGX_SUBMIT_CALL:
      answer.kind = CGX_COMPLETE_CALL;
      break;
    case CGX_SUBMIT_STEP_DONE:
      return;  // has no completion; the step that follows will not match
  }
  answer.outcome = CGX_OUTCOME_ERROR;
  answer.status = static_cast<uint16_t>(why.code());
  answer.comm = record.comm;
  answer.step = record.step;
  answer.tensor = record.tensor;
  answer.attempt = record.attempt;
  answer.cookie = record.cookie;
  if (members_.local[local].port != nullptr) {
    members_.local[local].port->complete(answer, why.message());
  }
}

void Communicator::publish_call_failures() {
  for (auto& [call, why] : calls_.take_failures()) {
    broadcast(CallFailure{call, why.code(), why.message()});
  }
}

void Communicator::ask_planner(PlanQuestion question, PlannerPort::Answer answer) {
  question.machine = members_.machine;
  question.machines = members_.machines();
  question.sites_each = members_.sites_each();
  question.slab_bytes = pool_.slab_bytes();
  const Site& site = port_.site(members_.site);
  question.site_consumes = site.consumes_inside();
  question.decoded_pieces = site.decoded_pieces();
  question.make_residual = site.residual_maker();
  question.prepare_site = site.preparer();
  question.residuals_elsewhere = site.residuals_elsewhere();
  if (question.table != table_) make_room_for(*question.table);
  question.bytes_free = port_.plan_share().left_for(members_.holder);
  if (steps_.installed() && steps_.plan()->table == question.table) {
    question.decisions = steps_.plan()->facts->decisions;
  } else {
    question.local_ranks = members_.local_count();
  }
  if (!steps_.residuals().empty()) {
    question.residual_table = steps_.residuals().table();
    question.has_residual = steps_.residuals().lasting();
    for (const PlanAgreement::PlanPtr& next : agreement_.announced()) {
      steps_.residuals().forget_unwanted(*next->facts, question.has_residual);
    }
  }
  port_.planner().request(
      std::move(question),
      [alive = std::weak_ptr(alive_), answer = std::move(answer)](const Result<FactsPtr>& facts) {
        if (!alive.expired()) answer(facts);
      });
}

// Residuals of tensors that the table lacks stay for one that has them again, where there is room
// for two models.
void Communicator::make_room_for(const TensorTable& table) {
  if (steps_.residuals().empty()) return;
  uint64_t bytes = 0;
  for (const TensorDesc& tensor : table) bytes += Residuals::bytes_of(tensor);
  if (port_.plan_share().left_for(members_.holder) / 2 >= bytes) return;
  steps_.release_residuals_beside(table);
  port_.release(steps_.take_freed());
}

Result<PlanAgreement::PlanPtr> Communicator::reserve(const FactsPtr& facts) {
  if (members_.site != kHostSite) CGX_RETURN_IF_ERROR(check_site_takes(*facts));
  const Share share = port_.plan_share();
  auto prepared = PreparedPlan::create(facts, pool_, steps_.residuals().bytes_missing(*facts),
                                       share.left_for(members_.holder));
  if (prepared.ok()) steps_.hold_residuals_for(*facts);
  const Status& status = prepared.status();
  if (status.code() != StatusCode::kRESOURCE_EXHAUSTED) return prepared;
  return Status(status.code(), status.message() + "; " + share.text(members_.holder));
}

uint64_t Communicator::next_switch_step() const {
  return steps_.started_end() + 1;
}

bool Communicator::work() {
  if (state_ == State::kFrozen) return work_frozen();
  if (state_ == State::kFailed) stop_search();  // its ranks may take long to leave
  if ((state_ != State::kRunning && state_ != State::kReady) || leaving_) return false;
  replay_next_plan();
  const Result<bool> called = calls_.work(port_.now_ns());
  publish_call_failures();
  const bool steps_run = state_ == State::kRunning && !must_wait_for_replay();
  const Result<bool> stepped = called.ok() && steps_run ? steps_.work(port_.now_ns()) : called;
  for (const Result<bool>* result : {&called, &stepped}) {
    if (result->ok()) continue;
    fail(result->status(), scope_of(result->status()));
    return true;
  }
  publish_result_hashes();
  port_.release(steps_.take_freed());
  reorder_if_useful();
  pursue_wish();
  tell_losses();
  tell_profile();
  if (sets_ceilings()) ceilings_.work(agreement_.base(steps_.plan())->facts);
  searches_plans() ? search_plans() : stop_search();
  answer_looks();
  return *called || *stepped;
}

void Communicator::lose_site(const Status& why) {
  fail({why.code(), members_.machine_name(members_.machine) + ": " + why.message()},
       Scope::kCommunicator);
}

// The site has answered; the operation may have ended meanwhile.
void Communicator::settle(Operation& operation, Ticket ticket, const SiteAnswer& answer) {
  const bool of_step = operation.kind() == wire::StepKind::kStep;
  const Status status = of_step ? steps_.settle(operation, ticket, answer, port_.now_ns())
                                : calls_.settle(operation, ticket, answer, port_.now_ns());
  if (status.code() == StatusCode::kDEVICE_LOST) {
    lose_site(status);
  } else if (!status.ok()) {
    fail(status, scope_of(status));
  }
  publish_result_hashes();
  report_if_flushed();
  if (state_ == State::kFailed && !tickets_open()) replay_held();
}

CommunicatorSnapshot Communicator::snapshot() const {
  CommunicatorSnapshot shown;
  shown.job = members_.job;
  shown.name = members_.name;
  shown.uid = members_.uid;
  shown.id = members_.id;
  shown.device = members_.device_name(members_.machine);
  shown.staged = members_.staged;
  shown.index = index_;
  shown.created_ns = created_ns_;
  shown.ranks = members_.ranks();
  shown.machines = members_.machines();
  shown.local_machine = members_.machine;
  shown.term = terms_.number();
  shown.step = steps_.step();
  shown.watermark = steps_.completed_end();
  shown.state = state_name(state_);
  shown.error = failure_.ok() ? "" : failure_.to_string();
  shown.feedback_begins = feedback_begins_;
  shown.switches = agreement_.switches();
  shown.searching = searches_plans() ? pilot_.doing() : "";
  if (searches_plans()) shown.trial_time = pilot_.trial_time();
  shown.plan_notes = pilot_.notes();
  const auto& set = ceilings_.notes();
  shown.plan_notes.insert(shown.plan_notes.begin(), set.begin(), set.end());
  std::stable_sort(shown.plan_notes.begin(), shown.plan_notes.end(),
                   [](const auto& one, const auto& other) { return one.step < other.step; });
  shown.policies = desk_.history();
  shown.reserved_bytes = reserved_bytes();
  shown.operations = steps_.totals().operations + calls_.totals().operations;
  shown.exchange_ns = steps_.totals().exchange_ns + calls_.totals().exchange_ns;
  shown.gradient_bytes = steps_.totals().gradient_bytes + calls_.totals().gradient_bytes;
  shown.wire_bytes_sent = wire_bytes_sent_;
  for (uint32_t rank = 0; rank < members_.ranks(); ++rank) {
    RankSnapshot& entry = shown.rank_list.emplace_back();
    entry.rank = rank;
    entry.machine = members_.machine_of_rank[rank];
    entry.local = entry.machine == members_.machine;
  }
  for (uint32_t i = 0; i < local_.size(); ++i) {
    shown.rank_list[members_.local[i].rank].step = local_[i].last_step;
  }
  show_late(shown.rank_list);
  if (!steps_.installed()) {
    shown.policy = desk_.policy();
    shown.policy_version = desk_.version();
    return shown;
  }
  const PreparedPlan& plan = *steps_.plan();
  shown.epoch = plan.plan.epoch;
  shown.policy_version = plan.plan.policy_version;
  shown.plan = plan.facts;
  shown.norms = steps_.norms();
  if (members_.coordinator()) shown.ceilings = ceilings_.set();
  return shown;
}

void Communicator::add_peers(std::vector<PeerSnapshot>& list) const {
  peers_.show(port_.now_ns(), list);
}

}  // namespace cgx::scheduler
