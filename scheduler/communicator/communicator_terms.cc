// Communicator, the bad days: failures and terms. A failure that everybody survives starts a new
// term and the step can be redone; one that takes a member along is permanent.
#include <algorithm>

#include "proto/wire/bytes.h"
#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kRememberNs = 5'000'000'000;  // a joining that failed

// The peer is there, but a link to it cannot be: told as it is.
bool refuses_link(StatusCode code) {
  return code == StatusCode::kAUTH_FAILED || code == StatusCode::kPERMISSION_DENIED ||
         code == StatusCode::kMISMATCH || code == StatusCode::kVERSION_MISMATCH ||
         code == StatusCode::kTIMED_OUT;
}

}  // namespace

void Communicator::fail(const Status& why, Scope scope, Origin origin) {
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  const bool permanent = scope == Scope::kCommunicator;
  if (state_ == State::kFrozen && !permanent) return;  // the first cause stands
  if (state_ == State::kJoining) joining_.fail();
  const State before = std::exchange(state_, permanent ? State::kFailed : State::kFrozen);
  failure_ = why;
  record({.kind = EventKind::kfailed, .a = static_cast<uint32_t>(why.code()), .b = permanent});
  port_.event(EventLevel::kError, members_.title() + ": " + why.to_string() +
                                      (permanent ? "" : "; the step can be redone"));
  count(Counter::koperations_failed, steps_.operations().size());
  if (origin == Origin::kHere) broadcast(Failure{why.code(), why.message(), scope});
  if (permanent) return end(why);
  CGX_ASSERT(before == State::kRunning || before == State::kReady);
  freeze(/*take_results=*/!attempts_.gave_up(steps_.step()));
}

// A rank that gave its backward pass up may use its buffers again: nothing more is written there.
void Communicator::freeze(bool take_results) {
  terms_.freeze(port_.now_ns());
  steps_.freeze(take_results);
  calls_.freeze(/*take_results=*/true);
  flush();
  check_left();
  report_if_flushed();
}

// For good. Whoever waits for anything is told.
void Communicator::end(const Status& why) {
  agreement_.end(why);
  steps_.fail(why);
  calls_.fail(why);
  answer_operators(why);
  profiles_.stop();
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].join_request, why);
    reply(i, local_[i].commit_request, why);
    reply(i, local_[i].redo_request, why);
  }
  pending_.reset();
  awaited_start_.reset();
  terms_.take_early();
  replay_held();
}

void Communicator::answer_operators(const Status& why) {
  for (const PolicyAnswer& answer : desk_.take_all()) answer(why);
  for (const Look& each : std::exchange(looks_, {})) each.answer(why);
}

void Communicator::tell_failure(uint32_t machine) {
  send_control(machine, Failure{failure_.code(), failure_.message(), Scope::kCommunicator});
}

void Communicator::handle(uint32_t machine, const Failure& message) {
  (void)machine;
  const bool of_step = message.scope == Scope::kStep;
  fail(Status(message.code, message.text), of_step ? Scope::kStep : Scope::kCommunicator,
       Origin::kElsewhere);
}

void Communicator::handle(uint32_t machine, const Flush& message) {
  (void)message;
  terms_.flush(machine);
  peers_.heard_data(machine, port_.now_ns());
  report_if_flushed();
}

// Behind the last frame to each. Results that pass through here come from machines that hear of the
// end at once; when all of those have said so, nothing more is passed on.
void Communicator::flush() {
  const auto passes_on_to = [this](uint32_t k) { return steps_.passes_on_to(k); };
  bool more = steps_.settling();
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    more = more || (k != members_.machine && !passes_on_to(k) && !terms_.flushed(k));
  }
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k == members_.machine || (more && passes_on_to(k))) continue;
    if (terms_.tell_flush(k)) send_control(k, Flush{});
  }
}

Report Communicator::make_report() const {
  Report report;
  // A rank that gave the step up will not end it, though all results may be here.
  const bool given_up = attempts_.gave_up(steps_.step());
  const uint64_t results_end = given_up ? steps_.step() : steps_.results_end();
  report.completed_end = steps_.installed() ? steps_.completed_end() : joining_.first_step();
  report.results_end = steps_.installed() ? results_end : joining_.first_step();
  report.started_end = steps_.started_end();
  report.calls_end = calls_.submitted_end();
  report.calls_open = calls_.open();
  report.calls_done.assign(calls_.done().begin(), calls_.done().end());
  if (steps_.installed()) {
    report.epoch = steps_.plan()->plan.epoch;
    report.plan_hash = steps_.plan()->hash;
  }
  return report;
}

// Makes results of what others have sent, nothing else; then it can be reported.
bool Communicator::work_frozen() {
  const Result<bool> called = calls_.work(port_.now_ns());
  const Result<bool> stepped = called.ok() ? steps_.work(port_.now_ns()) : called;
  if (!stepped.ok()) {
    fail(stepped.status(), scope_of(stepped.status()));
    return true;
  }
  report_if_flushed();
  return *called || *stepped;
}

// Every other machine has sent its last frame of this term, and the site has answered, so nothing
// here changes any more.
void Communicator::report_if_flushed() {
  if (state_ != State::kFrozen || terms_.has_reported()) return;
  flush();
  if (state_ != State::kFrozen || !terms_.all_flushed()) return;
  if (steps_.settling() || calls_.settling()) return;
  steps_.freeze(/*take_results=*/false);
  calls_.freeze(/*take_results=*/false);
  const Report own = make_report();
  terms_.report(members_.machine, own);
  if (members_.coordinator()) return start_term_if_reported();
  send_control(0, own);
}

void Communicator::handle(uint32_t machine, const Report& message) {
  if (!members_.coordinator()) return;
  terms_.report(machine, message);
  peers_.heard_data(machine, port_.now_ns());
  start_term_if_reported();
}

void Communicator::start_term_if_reported() {
  if (state_ != State::kFrozen || !terms_.all_reported()) return;
  Result<Start> concluded = terms_.conclude(failure_, steps_.has_groups());
  if (!concluded.ok()) return fail(concluded.status(), Scope::kCommunicator);
  Start& start = *concluded;
  if (steps_.installed()) {  // the step before may be open here, for want of a local rank's word
    const auto plan = start.first_step > steps_.step()
                          ? agreement_.plan_at(start.first_step, steps_.plan())
                          : steps_.plan();
    start.epoch = plan->plan.epoch;
    start.plan_hash = plan->hash;
    start.policy = plan->policy;
    if (!terms_.all_reported_plan(plan->hash)) start.plan = plan->facts->encoded;
  }
  broadcast(start);
  start_term(start);
}

// This machine stands at the term's first step under another plan than its coordinator.
bool Communicator::lacks_plan_of(const Start& start) const {
  const bool bound = steps_.installed() && steps_.step() == start.first_step;
  return bound && steps_.plan()->hash != start.plan_hash;
}

// The term begins here when its plan is made; until then this machine is frozen: what ranks say is
// held, and frames of the new term are kept.
void Communicator::ask_for_plan_of(const Start& start) {
  awaited_start_ = {start, steps_.plan()};
  ask_planner({.table = table_,
               .policy = start.policy,
               .epoch = start.epoch,
               .encoded_plan = start.plan,
               .ranks_wait = true},
              [this](const Result<FactsPtr>& facts) { start_awaited(facts); });
}

void Communicator::start_awaited(const Result<FactsPtr>& facts) {
  if (!awaited_start_) return;  // failed for good meanwhile
  const AwaitedStart awaited = *std::exchange(awaited_start_, std::nullopt);
  // A commit took force meanwhile: its plan is the newer one.
  if (steps_.plan() != awaited.running) return start_term(awaited.start);
  const auto prepared = facts.ok() ? reserve(*facts) : facts.status();
  if (!prepared.ok()) return fail(prepared.status(), Scope::kCommunicator);
  start_term(awaited.start, *prepared);
}

void Communicator::handle(uint32_t machine, const Start& message) {
  if (machine != 0 || state_ != State::kFrozen || awaited_start_) return;
  const Status status = terms_.check(message, steps_.has_groups());
  if (!status.ok()) return fail(status, Scope::kCommunicator);
  if (lacks_plan_of(message)) return ask_for_plan_of(message);
  start_term(message);
}

// `plan`: what this machine lacked for it.
void Communicator::start_term(const Start& start, const PlanAgreement::PlanPtr& plan) {
  const Status why(start.code, start.text);
  terms_.begin();
  record({.step = static_cast<uint32_t>(start.first_step),
          .kind = EventKind::kterm,
          .a = terms_.number()});
  failure_ = why;
  state_ = steps_.installed() ? State::kRunning : State::kReady;
  attempts_.begin_term();
  replicas_.forget();
  if (table_) meter_.begin(table_->size());
  peers_.begin_term(start.first_step, port_.now_ns());
  const ViewPtr view = members_.view_of(terms_.number());
  const std::vector<bool> told = steps_.restart(view, start.first_step, why);
  calls_.restart(view, start.calls_end, why);
  if (plan != nullptr) {
    agreement_.note_switch(
        plan, start.first_step,
        {kByTerm, "this machine had missed it when a step was to be redone: " + start.text});
    took_force(*plan, start.first_step);
    steps_.rebind(plan);
  }
  agreement_.postpone(port_.now_ns() + port_.options().timeouts.prepare_ns);
  attempts_.tell(told);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    if (local_[i].redo_request != 0) redo(i, local_[i].redo_request);
  }
  replay_early();
  replay_held();
  check_left();
}

void Communicator::replay_early() {
  for (const Terms::EarlyFrame& frame : terms_.take_early()) {
    receive(frame.header, frame.payload);
  }
}

void Communicator::replay_held() {
  for (const Attempts::Held& held : attempts_.take_held()) {
    // What a rank may not say it would have been told at once, had it not been held.
    (void)submit(held.local, held.record);
  }
}

void Communicator::redo(uint32_t local, uint32_t request) {
  LocalState& state = local_[local];
  state.redo_request = request;
  if (state_ == State::kFailed) return reply(local, state.redo_request, failure_);
  if (state_ == State::kFrozen) return;
  const uint32_t attempt = terms_.number();
  attempts_.redo(local, attempt);
  steps_.set_attempt(local, attempt);
  reply(local, state.redo_request, {}, attempt, steps_.next_step_of(local));
}

bool Communicator::leave_at_border(const Status& why) {
  if (!living()) return true;
  if (state_ == State::kFrozen) return false;  // a step is being settled
  if (state_ != State::kJoining) {
    leaving_ = leaving_ || (!operations_open() && steps_.idle());
    if (!leaving_) return false;
    const uint64_t steps_end = steps_.installed() ? steps_.completed_end() : 0;
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      if (k == members_.machine || peers_[k].departed) continue;
      const Peers::Peer& peer = peers_[k];
      if (peer.completed_end < steps_end || peer.calls_end < calls_.completed_end()) return false;
    }
  }
  fail({why.code(), members_.machine_name(members_.machine) + " leaves: " + why.message()},
       Scope::kCommunicator);
  return true;
}

// A rank leaves nothing behind that others wait for (PROTOCOL 24): what it has submitted fails, and
// who needs it from here on is told.
void Communicator::leave(uint32_t local) {
  LocalRank& rank = members_.local[local];
  LocalState& state = local_[local];
  state.left = true;
  state.commit_request = state.redo_request = 0;
  const bool unfinished = steps_.unfinished(local) || calls_.unfinished(local) || state.committed ||
                          state_ == State::kFrozen;
  const std::string name = "rank " + std::to_string(rank.rank) + " left " + members_.title();
  if (state_ == State::kJoining) {
    fail({StatusCode::kRANK_LOST, name + " while it was joining"}, Scope::kCommunicator);
  } else if (unfinished) {
    fail({StatusCode::kRANK_LOST, name + " while something it had submitted was unfinished"},
         Scope::kCommunicator);
  } else if (state_ != State::kFailed) {
    const uint64_t step_end = steps_.installed() ? steps_.step() : joining_.first_step();
    left_.push_back({rank.rank, step_end, calls_.next_of(local), commits_});
    broadcast(left_.back());
    check_left();
  }
  rank.port = nullptr;
  close_if_empty();
}

void Communicator::handle(uint32_t machine, const Left& message) {
  if (message.rank >= members_.ranks() || members_.machine_of_rank[message.rank] != machine) {
    return fail(protocol_error(members_.machine_name(machine) + " says that rank " +
                               std::to_string(message.rank) + " left"),
                Scope::kCommunicator);
  }
  const bool known = std::any_of(left_.begin(), left_.end(),
                                 [&](const Left& gone) { return gone.rank == message.rank; });
  if (!known) left_.push_back(message);
  check_left();
}

// Somebody waits for what a rank that left takes no part in.
void Communicator::check_left() {
  if (left_.empty() || state_ == State::kFailed || state_ == State::kClosed) return;
  if (awaited_start_) return;  // others may be beyond what local ranks have said
  const bool committing = std::any_of(local_.begin(), local_.end(),
                                      [](const LocalState& l) { return l.commit_request != 0; });
  for (const Left& gone : left_) {
    const bool waiting = (committing && commits_ >= gone.commits_end) || state_ == State::kFrozen ||
                         steps_.spoken_since(gone.step_end) || calls_.spoken_since(gone.calls_end);
    if (!waiting) continue;
    std::string text = "rank " + std::to_string(gone.rank) + " left " + members_.title();
    if (state_ == State::kFrozen) text += " when a step was to be redone: " + failure_.message();
    return fail({StatusCode::kRANK_LOST, text}, Scope::kCommunicator);
  }
}

void Communicator::lose_rank(uint32_t local, const Status& why) {
  LocalRank& rank = members_.local[local];
  rank.port = nullptr;
  local_[local].left = true;
  fail(is_gone(rank.rank, why.message()), Scope::kCommunicator);
  close_if_empty();
}

void Communicator::close_if_empty() {
  for (const LocalRank& local : members_.local) {
    if (local.port != nullptr) return;
  }
  if (state_ == State::kFailed && joining_.failed()) {
    joining_.forget_at(port_.now_ns() + kRememberNs);
    return;
  }
  broadcast(Bye{});
  state_ = State::kClosed;
  const Status closed(StatusCode::kCANCELLED, members_.title() + " was closed by its ranks");
  agreement_.end(closed);
  answer_operators(closed);
}

void Communicator::link_up(uint32_t machine, transport::PeerId peer) {
  peers_.link_up(machine, peer, port_.now_ns());
  record({.kind = EventKind::klink_up, .peer = static_cast<uint16_t>(machine)});
  if (state_ == State::kFailed) return tell_failure(machine);  // it could not be told before
  join_if_complete();
}

void Communicator::link_lost(uint32_t machine, const Status& why) {
  peers_.link_down(machine);
  if (peers_[machine].departed || state_ == State::kFailed || state_ == State::kClosed) return;
  count(Counter::kpeers_lost, 1);
  record({.kind = EventKind::klink_lost,
          .peer = static_cast<uint16_t>(machine),
          .a = static_cast<uint32_t>(why.code())});
  const StatusCode code = refuses_link(why.code()) ? why.code() : StatusCode::kPEER_LOST;
  fail({code, members_.machine_name(machine) + ": " + why.message()}, Scope::kCommunicator);
}

void Communicator::link_remade(uint32_t machine) {
  peers_.link_down(machine);
}

void Communicator::forgive_silence() {
  peers_.forgive_silence(port_.now_ns());
}

}  // namespace cgx::scheduler
