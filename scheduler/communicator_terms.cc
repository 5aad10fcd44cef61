// Communicator, the bad days: failures, terms, and the clocks that find them. A failure that
// everybody survives starts a new term and the step can be redone; one that takes a member along is
// permanent.
#include <algorithm>

#include "proto/wire/bytes.h"
#include "scheduler/communicator.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kJoinRetryNs = 20'000'000;
constexpr uint64_t kRememberNs = 5'000'000'000;  // a joining that failed

// The peer is there, but a link to it cannot be: told as it is.
bool refuses_link(StatusCode code) {
  return code == StatusCode::kAUTH_FAILED || code == StatusCode::kPERMISSION_DENIED ||
         code == StatusCode::kMISMATCH || code == StatusCode::kVERSION_MISMATCH ||
         code == StatusCode::kTIMED_OUT;
}

}  // namespace

void Communicator::fail(const Status& why, bool permanent, bool tell_others) {
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  if (state_ == State::kFrozen && !permanent) return;  // the first cause stands
  failed_joining_ = state_ == State::kJoining;
  const State before = std::exchange(state_, permanent ? State::kFailed : State::kFrozen);
  failure_ = why;
  services_.event(EventLevel::kError, members_.title() + ": " + why.to_string() +
                                          (permanent ? "" : "; the step can be redone"));
  count(Counter::koperations_failed, steps_.operations().size());
  if (tell_others) {
    broadcast(Failure{why.code(), why.message(), static_cast<uint8_t>(permanent)});
  }
  if (permanent) return end(why);
  CGX_ASSERT(before == State::kRunning || before == State::kReady);
  freeze(/*take_results=*/abandoned_ != steps_.step());
}

// A rank that gave its backward pass up may use its buffers again: nothing more is written there.
void Communicator::freeze(bool take_results) {
  frozen_since_ns_ = services_.now_ns();
  steps_.freeze(take_results);
  calls_.freeze(/*take_results=*/true);
  broadcast(Flush{});
  check_left();
  report_if_flushed();
}

// For good. Whoever waits for anything is told.
void Communicator::end(const Status& why) {
  agreement_.end(why);
  steps_.fail(why);
  calls_.fail(why);
  answer_operators(why);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].join_request, why);
    reply(i, local_[i].commit_request, why);
    reply(i, local_[i].redo_request, why);
  }
  pending_.reset();
  early_frames_.clear();
  replay_held();
}

void Communicator::answer_operators(const Status& why) {
  for (auto& [number, ticket] : std::exchange(tickets_, {})) ticket.answer(why);
  if (wish_) std::exchange(wish_, std::nullopt)->answer(why);
}

void Communicator::tell_failure(uint32_t machine) {
  send_control(machine, Failure{failure_.code(), failure_.message(), /*permanent=*/1});
}

void Communicator::handle(uint32_t machine, const Failure& message) {
  (void)machine;
  fail(Status(message.code, message.text), message.permanent != 0, /*tell_others=*/false);
}

// --- Terms
// ----------------------------------------------------------------------------------------

void Communicator::handle(uint32_t machine, const Flush& message) {
  (void)message;
  peers_[machine].flushed = true;
  peers_[machine].last_data_ns = services_.now_ns();
  report_if_flushed();
}

Report Communicator::make_report() const {
  Report report;
  // A rank that gave the step up will not end it, though all results may be here.
  const bool given_up = abandoned_ == steps_.step();
  const uint64_t results_end = given_up ? steps_.step() : steps_.results_end();
  report.completed_end = steps_.installed() ? steps_.completed_end() : first_step_;
  report.results_end = steps_.installed() ? results_end : first_step_;
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

// Every other machine has sent its last frame of this term, so nothing here changes any more.
void Communicator::report_if_flushed() {
  PeerState& own = peers_[members_.machine];
  if (state_ != State::kFrozen || own.reported) return;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k != members_.machine && !peers_[k].flushed) return;
  }
  steps_.freeze(/*take_results=*/false);
  calls_.freeze(/*take_results=*/false);
  own.report = make_report();
  own.reported = true;
  if (members_.coordinator()) return start_term_if_reported();
  send_control(0, own.report);
}

void Communicator::handle(uint32_t machine, const Report& message) {
  if (!members_.coordinator()) return;
  peers_[machine].report = message;
  peers_[machine].reported = true;
  peers_[machine].last_data_ns = services_.now_ns();
  start_term_if_reported();
}

void Communicator::start_term_if_reported() {
  if (state_ != State::kFrozen) return;
  Start start{.code = failure_.code(), .text = failure_.message()};
  uint64_t results_end = UINT64_MAX, completed_end = 0;  // on all machines, on some machine
  std::vector<uint64_t> open, done;
  bool same_plan = true;
  for (const PeerState& peer : peers_) {
    if (!peer.reported) return;
    const Report& report = peer.report;
    results_end = std::min(results_end, report.results_end);
    completed_end = std::max(completed_end, report.completed_end);
    start.calls_end = std::max(start.calls_end, report.calls_end);
    open.insert(open.end(), report.calls_open.begin(), report.calls_open.end());
    done.insert(done.end(), report.calls_done.begin(), report.calls_done.end());
  }
  const auto lost = [&](const std::string& what) {
    fail({StatusCode::kSTEP_LOST,
          what +
              " completed on some machines only and cannot be redone; restore a checkpoint (it "
              "failed because: " +
              failure_.message() + ")"},
         /*permanent=*/true, /*tell_others=*/true);
  };
  if (results_end < completed_end && steps_.has_groups()) {
    return lost("step " + std::to_string(results_end));
  }
  for (const uint64_t call : open) {
    if (std::find(done.begin(), done.end(), call) == done.end()) continue;
    return lost("call " + std::to_string(call));
  }
  start.first_step = results_end;
  if (steps_.installed()) {  // the step before may be open here, for want of a local rank's word
    const auto plan = start.first_step > steps_.step()
                          ? agreement_.plan_at(start.first_step, steps_.plan())
                          : steps_.plan();
    for (const PeerState& peer : peers_) same_plan &= peer.report.plan_hash == plan->hash;
    start.epoch = plan->plan.epoch;
    start.plan_hash = plan->hash;
    start.policy = plan->policy;
    if (!same_plan) start.plan = plan->facts->encoded;
  }
  broadcast(start);
  start_term(start);
}

// What an honest coordinator says follows from what this machine has reported.
Status Communicator::check_start(const Start& start) const {
  constexpr uint64_t kCallsMax = 1024;
  const Report& own = peers_[members_.machine].report;
  const bool step_fits =
      start.first_step >= own.completed_end && start.first_step <= own.results_end;
  const bool fits = peers_[members_.machine].reported && (step_fits || !steps_.has_groups()) &&
                    start.calls_end <= own.calls_end + kCallsMax;
  if (fits) return {};
  return protocol_error(
      "the coordinator starts a term at step " + std::to_string(start.first_step) + ", call " +
      std::to_string(start.calls_end) + "; this machine reported step " +
      std::to_string(own.results_end) + ", call " + std::to_string(own.calls_end));
}

// Where a machine stands at the term's first step under another plan than its coordinator.
Status Communicator::take_plan_of(const Start& start) {
  const bool bound = steps_.installed() && steps_.step() == start.first_step;
  if (!bound || steps_.plan()->hash == start.plan_hash) return {};
  // Made here and now: no step goes on without it.
  CGX_ASSIGN_OR_RETURN(const FactsPtr facts, make_facts({.table = table_,
                                                         .policy = start.policy,
                                                         .encoded_plan = start.plan,
                                                         .machine = members_.machine,
                                                         .machines = members_.machines(),
                                                         .slab_bytes = pool_.slab_bytes()}));
  CGX_ASSIGN_OR_RETURN(const PlanAgreement::PlanPtr prepared, reserve(facts));
  agreement_.note_switch(prepared, start.first_step);
  steps_.rebind(prepared);
  return {};
}

void Communicator::handle(uint32_t machine, const Start& message) {
  if (machine != 0 || state_ != State::kFrozen) return;
  const Status status = check_start(message);
  if (!status.ok()) return fail(status, /*permanent=*/true, /*tell_others=*/true);
  start_term(message);
}

void Communicator::start_term(const Start& start) {
  const Status why(start.code, start.text);
  ++term_;
  failure_ = why;
  state_ = steps_.installed() ? State::kRunning : State::kReady;
  abandoned_.reset();
  replicas_.clear();  // a pass that is made again need not give the same gradients
  for (PeerState& peer : peers_) {
    peer.flushed = peer.reported = false;
    peer.started_end = start.first_step;
    peer.last_data_ns = services_.now_ns();
  }
  const std::vector<bool> told = steps_.restart(start.first_step, why);
  calls_.restart(start.calls_end, why);
  const Status planned = take_plan_of(start);
  if (!planned.ok()) return fail(planned, /*permanent=*/true, /*tell_others=*/true);
  agreement_.postpone(services_.now_ns() + services_.options().timeouts.prepare_ns);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    local_[i].must_redo = local_[i].must_redo || told[i];
    if (local_[i].redo_request != 0) redo(i, local_[i].redo_request);
  }
  replay_early();
  replay_held();
}

void Communicator::replay_early() {
  for (const WaitingFrame& frame : std::exchange(early_frames_, {})) {
    receive(frame.header, frame.payload);
  }
}

void Communicator::replay_held() {
  for (const HeldRecord& held : std::exchange(held_, {})) {
    // What a rank may not say it would have been told at once, had it not been held.
    (void)submit(held.local, held.record);
  }
}

void Communicator::redo(uint32_t local, uint32_t request) {
  LocalState& state = local_[local];
  state.redo_request = request;
  if (state_ == State::kFailed) return reply(local, state.redo_request, failure_);
  if (state_ == State::kFrozen) return;
  state.attempt = term_;
  state.must_redo = false;
  steps_.set_attempt(local, term_);
  reply(local, state.redo_request, {}, term_, steps_.next_step_of(local));
}

// --- Members that go
// -------------------------------------------------------------------------------

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
    fail({StatusCode::kRANK_LOST, name + " while it was joining"}, true, true);
  } else if (unfinished) {
    fail({StatusCode::kRANK_LOST, name + " while something it had submitted was unfinished"}, true,
         true);
  } else if (state_ != State::kFailed) {
    const uint64_t step_end = steps_.installed() ? steps_.step() : first_step_;
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
                /*permanent=*/true, /*tell_others=*/true);
  }
  const bool known = std::any_of(left_.begin(), left_.end(),
                                 [&](const Left& gone) { return gone.rank == message.rank; });
  if (!known) left_.push_back(message);
  check_left();
}

// Somebody waits for what a rank that left takes no part in.
void Communicator::check_left() {
  if (left_.empty() || state_ == State::kFailed || state_ == State::kClosed) return;
  const bool committing = std::any_of(local_.begin(), local_.end(),
                                      [](const LocalState& l) { return l.commit_request != 0; });
  for (const Left& gone : left_) {
    const bool waiting = (committing && commits_ >= gone.commits_end) || state_ == State::kFrozen ||
                         steps_.spoken_since(gone.step_end) || calls_.spoken_since(gone.calls_end);
    if (!waiting) continue;
    std::string text = "rank " + std::to_string(gone.rank) + " left " + members_.title();
    if (state_ == State::kFrozen) text += " when a step was to be redone: " + failure_.message();
    return fail({StatusCode::kRANK_LOST, text}, /*permanent=*/true, /*tell_others=*/true);
  }
}

void Communicator::lose_rank(uint32_t local, const Status& why) {
  LocalRank& rank = members_.local[local];
  rank.port = nullptr;
  local_[local].left = true;
  fail(is_gone(rank.rank, why.message()), /*permanent=*/true, /*tell_others=*/true);
  close_if_empty();
}

void Communicator::close_if_empty() {
  for (const LocalRank& local : members_.local) {
    if (local.port != nullptr) return;
  }
  if (state_ == State::kFailed && failed_joining_) {
    forget_at_ns_ = services_.now_ns() + kRememberNs;
    return;
  }
  broadcast(Bye{});
  state_ = State::kClosed;
  const Status closed(StatusCode::kCANCELLED, members_.title() + " was closed by its ranks");
  agreement_.end(closed);
  answer_operators(closed);
}

void Communicator::link_up(uint32_t machine, transport::PeerId peer) {
  peers_[machine].peer = peer;
  peers_[machine].up = true;
  peers_[machine].last_heard_ns = peers_[machine].last_data_ns = services_.now_ns();
  if (state_ == State::kFailed) return tell_failure(machine);  // it could not be told before
  join_if_complete();
}

void Communicator::link_lost(uint32_t machine, const Status& why) {
  PeerState& peer = peers_[machine];
  peer.up = false;
  if (peer.departed || state_ == State::kFailed || state_ == State::kClosed) return;
  count(Counter::kpeers_lost, 1);
  const StatusCode code = refuses_link(why.code()) ? why.code() : StatusCode::kPEER_LOST;
  fail({code, members_.machine_name(machine) + ": " + why.message()}, /*permanent=*/true,
       /*tell_others=*/true);
}

void Communicator::forgive_silence() {
  for (PeerState& peer : peers_) {
    if (peer.up) peer.last_heard_ns = peer.last_data_ns = services_.now_ns();
  }
}

// --- Clocks
// ----------------------------------------------------------------------------------------

void Communicator::tick() {
  const uint64_t now = services_.now_ns();
  if (now < next_tick_ns_) return;
  const bool joining = state_ == State::kJoining;
  next_tick_ns_ = now + (joining ? kJoinRetryNs : services_.options().timeouts.heartbeat_ns);
  if (joining) repeat_join();
  if (forget_at_ns_ != 0 && now >= forget_at_ns_) state_ = State::kClosed;
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  send_heartbeats();
  if (state_ != State::kFrozen) agreement_.tick(now);
  for (auto it = tickets_.begin(); it != tickets_.end();) {
    if (now < it->second.deadline_ns) {
      ++it;
      continue;
    }
    it->second.answer(Status(StatusCode::kTIMED_OUT,
                             "the coordinator of " + members_.title() + " did not answer"));
    it = tickets_.erase(it);
  }
  check_peers();
  if (state_ == State::kFrozen) return check_frozen();
  check_agreements();
  check_stalled();
  check_late();
}

std::string Communicator::silent_machines() const {
  const bool reported = peers_[members_.machine].reported;
  std::string silent;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    const bool awaited = reported ? members_.coordinator() && !peers_[k].reported
                                  : k != members_.machine && !peers_[k].flushed;
    if (awaited) silent += (silent.empty() ? "" : "; ") + members_.machine_name(k);
  }
  return silent.empty() ? members_.machine_name(0) : silent;
}

// Messages do not get lost on a live link, but a machine may stop answering. The clock starts anew
// with each frame of the term that ends; members wait a little longer than their coordinator, who
// can name the culprit.
void Communicator::check_frozen() {
  uint64_t since = frozen_since_ns_;
  for (const PeerState& peer : peers_) since = std::max(since, peer.last_data_ns);
  const uint64_t patience = services_.options().timeouts.peer_lost_ns;
  const uint64_t now = services_.now_ns();
  if (now - since < (members_.coordinator() ? patience : patience * 3 / 2)) return;
  fail({StatusCode::kPEER_LOST,
        "no new term after '" + failure_.message() + "': no word from " + silent_machines()},
       /*permanent=*/true, /*tell_others=*/true);
}

void Communicator::check_agreements() {
  const uint64_t now = services_.now_ns();
  const Timeouts& timeouts = services_.options().timeouts;
  // Members wait a little longer than their coordinator, who can name the culprit.
  const uint64_t patience = timeouts.peer_lost_ns * 3 / 2;
  if (agreement_.undecided_since_ns() != 0 &&
      now - agreement_.undecided_since_ns() >= 2 * timeouts.prepare_ns + patience) {
    return fail({StatusCode::kPEER_LOST, "the coordinator, " + members_.machine_name(0) +
                                             ", never decided the plan it proposed"},
                true, true);
  }
  const bool committing = std::any_of(local_.begin(), local_.end(),
                                      [](const LocalState& l) { return l.commit_request; });
  if (!committing) {
    commit_since_ns_ = 0;
  } else if (commit_since_ns_ == 0) {
    commit_since_ns_ = now;
  } else if (now - commit_since_ns_ >= timeout_ns_) {
    std::vector<uint32_t> missing = not_committing();
    for (const PeerState& peer : peers_) {
      missing.insert(missing.end(), peer.missing_commit.begin(), peer.missing_commit.end());
    }
    std::string names;
    for (const uint32_t rank : missing) names += " rank " + std::to_string(rank);
    return fail({StatusCode::kTIMED_OUT, "the commit of " + members_.title() + " waits for" +
                                             (names.empty() ? " the coordinator" : names)},
                true, true);
  }
}

std::vector<uint32_t> Communicator::not_committing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < local_.size(); ++i) {
    if (local_[i].commit_request == 0) ranks.push_back(members_.local[i].rank);
  }
  return ranks;
}

void Communicator::send_heartbeats() {
  if (members_.machines() == 1 || state_ == State::kJoining) return;
  wire::Writer writer;
  writer.put(steps_.step());
  writer.put(calls_.completed_end());
  for (const std::vector<uint32_t>& missing :
       {steps_.missing_ranks(), calls_.missing_ranks(), not_committing()}) {
    writer.put<uint32_t>(static_cast<uint32_t>(missing.size()));
    for (uint32_t rank : missing) writer.put(rank);
  }
  const std::vector<std::byte> body = writer.take();
  wire::FrameHeader header = header_for(wire::FrameType::kHeartbeat);
  header.progress = ++peers_[members_.machine].progress;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k != members_.machine) send_to(k, header, body, kNoSlab);
  }
}

void Communicator::check_peers() {
  const uint64_t now = services_.now_ns();
  const Timeouts& timeouts = services_.options().timeouts;
  if (state_ == State::kJoining) {
    if (now - created_ns_ < timeouts.join_ns) return;
    std::string missing;
    for (const LocalRank& local : members_.local) {
      if (local.port == nullptr) missing += " rank " + std::to_string(local.rank) + ",";
    }
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      if (k == members_.machine ||
          (peers_[k].up && (peers_[k].joined || !members_.coordinator()))) {
        continue;
      }
      missing += " " + members_.machine_name(k) + ",";
    }
    if (!missing.empty()) missing.pop_back();
    return fail({StatusCode::kTIMED_OUT, members_.title() + " did not come together within " +
                                             std::to_string(timeouts.join_ns / 1'000'000'000) +
                                             " s; missing:" + missing},
                true, true);
  }
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    const PeerState& peer = peers_[k];
    if (k == members_.machine || peer.departed || !peer.up) continue;
    if (now - peer.last_heard_ns < timeouts.peer_lost_ns) continue;
    return link_lost(
        k, {StatusCode::kPEER_LOST,
            "no heartbeat for " + std::to_string((now - peer.last_heard_ns) / 1'000'000) + " ms"});
  }
}

// The clock of a started operation runs only when every machine has announced it; then one that is
// needed and silent is at fault.
void Communicator::check_stalled() {
  const uint64_t now = services_.now_ns();
  const uint64_t limit = services_.options().timeouts.stalled_ns;
  const auto check = [&](const Operation& operation) -> bool {
    if (now - operation.last_progress_ns() < limit) return false;
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      if (k == members_.machine) continue;
      const bool announced = !operation.silent(k) || (operation.kind() == wire::StepKind::kStep &&
                                                      peers_[k].started_end > operation.step() + 1);
      if (!announced && !peers_[k].departed) return false;
    }
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      if (k == members_.machine || !operation.waits_for(k)) continue;
      if (!peers_[k].departed && now - peers_[k].last_data_ns < limit) continue;
      const bool of_call = operation.kind() == wire::StepKind::kCall;
      const std::string what = of_call ? "call " + std::to_string(operation.step())
                                       : "group " + std::to_string(operation.group_index()) +
                                             " of step " + std::to_string(operation.step());
      fail({peers_[k].departed ? StatusCode::kCANCELLED : StatusCode::kOP_STALLED,
            what + " of " + members_.title() + " waits for " + members_.machine_name(k) +
                (peers_[k].departed ? ", whose ranks closed it"
                                    : ", which has sent nothing for " +
                                          std::to_string(limit / 1'000'000) + " ms")},
           /*permanent=*/peers_[k].departed, /*tell_others=*/true);
      return true;
    }
    return false;
  };
  for (const auto& operation : steps_.operations()) {
    if (check(*operation)) return;
  }
  for (const auto& operation : calls_.operations()) {
    if (check(*operation)) return;
  }
}

// A rank that has not come is warned about by name at 5 s, 10 s, 20 s, ...; it is given up only at
// the communicator's own time-out.
void Communicator::check_late() {
  const uint64_t now = services_.now_ns();
  const uint64_t step_since = steps_.waiting_since_ns();
  const bool step_waits = step_since != 0;
  const uint64_t since = step_waits ? step_since : calls_.oldest_wait_ns();
  if (since == 0) {
    warning_step_ns_ = 0;
    return;
  }
  const uint64_t first_warning = services_.options().timeouts.late_warning_ns;
  if (warning_step_ns_ != since) {
    warning_step_ns_ = since;
    next_warning_ns_ = since + first_warning;
  }
  if (now < next_warning_ns_ && now - since < timeout_ns_) return;
  std::vector<uint32_t> late = step_waits ? steps_.missing_ranks() : calls_.missing_ranks();
  const uint64_t number = step_waits ? steps_.step() : calls_.completed_end();
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    const PeerState& peer = peers_[k];
    if (k == members_.machine || (step_waits ? peer.step : peer.call) > number) continue;
    const std::vector<uint32_t>& missing = step_waits ? peer.missing_step : peer.missing_call;
    late.insert(late.end(), missing.begin(), missing.end());
  }
  if (late.empty() && now - since < timeout_ns_) return;
  std::sort(late.begin(), late.end());
  std::string names;
  for (uint32_t rank : late) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const std::string text = members_.title() + ": " + (step_waits ? "step " : "call ") +
                           std::to_string(number) + " has waited " +
                           std::to_string((now - since) / 1'000'000'000) + " s for " +
                           (late.empty() ? std::string("the network") : "rank " + names);
  if (now - since >= timeout_ns_) {
    // Who waits for a local rank's word only, with all results here, is told, too.
    if (step_waits && steps_.results_end() > number) abandoned_ = number;
    return fail({StatusCode::kTIMED_OUT, text}, /*permanent=*/false, /*tell_others=*/true);
  }
  next_warning_ns_ = since + 2 * (next_warning_ns_ - since);
  count(Counter::klate_rank_warnings, 1);
  services_.event(EventLevel::kWarning, text);
}

}  // namespace cgx::scheduler
