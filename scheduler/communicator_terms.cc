// Communicator, the bad days: failures, terms, and the clocks that find them (DESIGN §5.4, PROTOCOL
// 10-12). A failure that everybody survives starts a new term and the step can be redone; one that
// takes a member along is permanent.
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
  const bool again = state_ == State::kFrozen;
  if (again && !permanent) return;  // the first cause stands
  if (tell_others) {
    broadcast(Failure{why.code(), why.message(), static_cast<uint8_t>(permanent)});
  }
  failure_ = why;
  services_.event(EventLevel::kError, members_.title() + ": " + why.to_string() +
                                          (permanent ? "" : "; the step can be redone"));
  count(Counter::koperations_failed, steps_.operations().size());
  failed_joining_ = state_ == State::kJoining;
  state_ = permanent ? State::kFailed : State::kFrozen;
  frozen_since_ns_ = services_.now_ns();
  agreement_.reset(why);
  if (!again) {
    steps_.fail(why, term_ + 1);
    calls_.fail_all(why);
  }
  for (auto& [number, ticket] : tickets_) ticket.answer(why);
  tickets_.clear();
  if (permanent) {
    for (uint32_t i = 0; i < local_.size(); ++i) {
      reply(i, local_[i].join_request, why);
      reply(i, local_[i].commit_request, why);
      reply(i, local_[i].redo_request, why);
    }
    return;
  }
  for (LocalState& local : local_) local.committed = false;
  for (uint32_t i = 0; i < local_.size(); ++i) reply(i, local_[i].commit_request, why);
  PeerState& own = peers_[members_.machine];
  own.report = {steps_.completed_end(), calls_.submitted_end()};
  own.reported = true;
  if (members_.coordinator()) return start_term_if_reported();
  send_control(0, own.report);
}

void Communicator::tell_failure(uint32_t machine) {
  send_control(machine, Failure{failure_.code(), failure_.message(), /*permanent=*/1});
}

void Communicator::handle(uint32_t machine, const Failure& message) {
  (void)machine;
  fail(Status(message.code, message.text), message.permanent != 0, /*tell_others=*/false);
}

void Communicator::handle(uint32_t machine, const Report& message) {
  if (!members_.coordinator()) return;
  peers_[machine].report = message;
  peers_[machine].reported = true;
  start_term_if_reported();
}

void Communicator::start_term_if_reported() {
  if (state_ != State::kFrozen) return;
  uint64_t lowest = UINT64_MAX, highest = 0, calls_end = 0;
  for (const PeerState& peer : peers_) {
    if (!peer.reported) return;
    lowest = std::min(lowest, peer.report.completed_end);
    highest = std::max(highest, peer.report.completed_end);
    calls_end = std::max(calls_end, peer.report.calls_end);
  }
  if (lowest != highest) {
    return fail({StatusCode::kSTEP_LOST,
                 "step " + std::to_string(lowest) +
                     " completed on some machines only and cannot be redone; restore a checkpoint "
                     "(the step failed because: " +
                     failure_.message() + ")"},
                /*permanent=*/true, /*tell_others=*/true);
  }
  const Start start{lowest, calls_end};
  broadcast(start);
  start_term(start);
}

void Communicator::handle(uint32_t machine, const Start& message) {
  if (machine == 0 && state_ == State::kFrozen) start_term(message);
}

void Communicator::start_term(const Start& start) {
  ++term_;
  state_ = steps_.installed() ? State::kRunning : State::kReady;
  for (PeerState& peer : peers_) {
    peer.reported = false;
    peer.last_data_ns = services_.now_ns();
  }
  if (steps_.installed()) steps_.restart(start.first_step);
  calls_.fail_until(start.calls_end, failure_);
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].redo_request, {}, term_, start.first_step);
  }
  std::vector<WaitingFrame> early = std::move(next_term_frames_);
  next_term_frames_.clear();
  for (const WaitingFrame& frame : early) receive(frame.header, frame.payload);
}

void Communicator::redo(uint32_t local, uint32_t request) {
  LocalState& state = local_[local];
  state.redo_request = request;
  if (state_ == State::kFailed) return reply(local, state.redo_request, failure_);
  if (state_ != State::kFrozen) {
    reply(local, state.redo_request, {}, term_, steps_.step());
  }
}

// --- Members that go
// -------------------------------------------------------------------------------

void Communicator::leave(uint32_t local) {
  LocalRank& rank = members_.local[local];
  local_[local].left = true;
  if (operations_open()) {
    fail({StatusCode::kCANCELLED, "rank " + std::to_string(rank.rank) + " closed " +
                                      members_.title() + " while an operation was in flight"},
         /*permanent=*/true, /*tell_others=*/true);
  }
  if (state_ == State::kJoining) {
    fail({StatusCode::kCANCELLED,
          "rank " + std::to_string(rank.rank) + " left " + members_.title() + " while joining"},
         true, true);
  }
  rank.port = nullptr;
  close_if_empty();
}

void Communicator::lose_rank(uint32_t local, const Status& why) {
  LocalRank& rank = members_.local[local];
  rank.port = nullptr;
  local_[local].left = true;
  fail({StatusCode::kRANK_LOST, "rank " + std::to_string(rank.rank) + " of " + members_.title() +
                                    " is gone: " + why.message()},
       /*permanent=*/true, /*tell_others=*/true);
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
  agreement_.tick(now);
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
  check_agreements();
  check_stalled();
  check_late();
}

// Messages do not get lost on a live link, but a machine may stop answering: nobody waits for ever.
void Communicator::check_agreements() {
  const uint64_t now = services_.now_ns();
  const Timeouts& timeouts = services_.options().timeouts;
  // Members wait a little longer than their coordinator, who can name the culprit.
  const uint64_t patience =
      members_.coordinator() ? timeouts.peer_lost_ns : timeouts.peer_lost_ns * 3 / 2;
  if (state_ == State::kFrozen && now - frozen_since_ns_ >= patience) {
    std::string silent = members_.machine_name(0);
    if (members_.coordinator()) {
      silent.clear();
      for (uint32_t k = 0; k < members_.machines(); ++k) {
        if (!peers_[k].reported) silent += (silent.empty() ? "" : "; ") + members_.machine_name(k);
      }
    }
    return fail({StatusCode::kPEER_LOST,
                 "no new term after '" + failure_.message() + "': no word from " + silent},
                /*permanent=*/true, /*tell_others=*/true);
  }
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
    std::string missing;
    for (uint32_t i = 0; i < local_.size(); ++i) {
      if (local_[i].commit_request == 0) {
        missing += " rank " + std::to_string(members_.local[i].rank);
      }
    }
    for (uint32_t k = 1; members_.coordinator() && k < members_.machines(); ++k) {
      if (tables_[k].empty()) missing += " " + members_.machine_name(k);
    }
    return fail({StatusCode::kTIMED_OUT, "the commit of " + members_.title() + " waits for" +
                                             (missing.empty() ? " the coordinator" : missing)},
                true, true);
  }
}

void Communicator::send_heartbeats() {
  if (members_.machines() == 1 || state_ == State::kJoining) return;
  wire::Writer writer;
  writer.put(steps_.step());
  writer.put(calls_.completed_end());
  for (const std::vector<uint32_t>& missing : {steps_.missing_ranks(), calls_.missing_ranks()}) {
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
  const bool step_waits = steps_.waiting();
  const uint64_t since = step_waits ? steps_.waiting_since_ns() : calls_.oldest_wait_ns();
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
    return fail({StatusCode::kTIMED_OUT, text}, /*permanent=*/false, /*tell_others=*/true);
  }
  next_warning_ns_ = since + 2 * (next_warning_ns_ - since);
  count(Counter::klate_rank_warnings, 1);
  services_.event(EventLevel::kWarning, text);
}

}  // namespace cgx::scheduler
