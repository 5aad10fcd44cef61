// Communicator, its clocks: heartbeats, and who is silent, stalled or late.
#include <algorithm>

#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kExcusedMax = 8;  // times the limit: a link of others' frames is never empty

}  // namespace

void Communicator::tick() {
  const uint64_t now = port_.now_ns();
  if (now < next_tick_ns_) return;
  const bool joining = state_ == State::kJoining;
  next_tick_ns_ = now + (joining ? kJoinRetryNs : port_.options().timeouts.heartbeat_ns);
  if (joining) repeat_join();
  if (joining_.forget_at_ns() != 0 && now >= joining_.forget_at_ns()) state_ = State::kClosed;
  if (state_ == State::kFailed || state_ == State::kClosed) return;
  send_heartbeats();
  if (state_ != State::kFrozen) agreement_.tick(now);
  for (const PolicyAnswer& answer : desk_.take_late(now)) {
    answer(Status(StatusCode::kTIMED_OUT,
                  "the coordinator of " + members_.title() +
                      " did not answer; it may still come into force: look before you try again"));
  }
  answer_late_looks();
  check_peers();
  if (state_ == State::kFrozen) return check_frozen();
  check_agreements();
  check_stalled();
  check_late();
}

// Messages do not get lost on a live link, but a machine may stop answering. The clock starts anew
// with each frame of the term that ends; members wait a little longer than their coordinator, who
// can name the culprit.
void Communicator::check_frozen() {
  if (awaited_start_) return;  // this machine is the one that takes its time
  const uint64_t since = std::max(terms_.frozen_since_ns(), peers_.last_data_ns());
  const uint64_t lost = port_.options().timeouts.peer_lost_ns;
  const uint64_t patience = members_.coordinator() ? lost : lost * 3 / 2;
  const uint64_t waited = port_.now_ns() - since;
  if (waited < patience) return;
  std::string silent;
  for (const uint32_t k : terms_.awaited()) {
    if (excused(k, waited, patience)) continue;
    silent += (silent.empty() ? "" : "; ") + members_.machine_name(k);
  }
  if (silent.empty()) {
    if (waited < kExcusedMax * patience) return;
    silent = members_.machine_name(members_.machine);  // its own site has not answered
  }
  fail({StatusCode::kPEER_LOST,
        "no new term after '" + failure_.message() + "': no word from " + silent},
       Scope::kCommunicator);
}

// Or it waits itself for a machine that is excused where it is, or for its own site: then it knows
// better what is wrong there, and a rank whose GPU is behind is given up as other late ranks are.
bool Communicator::excused(uint32_t machine, uint64_t waited_ns, uint64_t limit_ns) const {
  if (state_ != State::kFrozen && peers_.waits_for_itself(machine)) return true;
  return waited_ns < kExcusedMax * limit_ns &&
         (cannot_answer(machine) || peers_.waits_elsewhere(machine));
}

// Its word may wait where its heartbeats do, or it may not have got yet what it is to answer.
bool Communicator::cannot_answer(uint32_t machine) const {
  const uint64_t unheard_ns = port_.now_ns() - peers_[machine].last_heard_ns;
  return unheard_ns >= 3 * port_.options().timeouts.heartbeat_ns || port_.under_way(*this, machine);
}

// Only one that is seen to be held up here: what others say is not passed on, so that machines
// which wait for each other in a circle excuse nobody.
uint32_t Communicator::awaited_machine() const {
  if (state_ == State::kFrozen && !awaited_start_) {
    for (const uint32_t k : terms_.awaited()) {
      if (cannot_answer(k)) return k;
    }
  }
  if (state_ != State::kRunning && state_ != State::kReady) return kNobody;
  const auto look = [&](const Operation& operation) -> uint32_t {
    const uint64_t still_ns = port_.now_ns() - operation.last_progress_ns();
    const bool still = still_ns >= port_.options().timeouts.heartbeat_ns;
    if (still && operation.tickets_open()) return members_.machine;
    for (uint32_t k = 0; still && k < members_.machines(); ++k) {
      if (k != members_.machine && cannot_answer(k) && operation.waits_for(k) != 0) return k;
    }
    return kNobody;
  };
  uint32_t awaited = kNobody;
  for (const auto& operation : steps_.operations()) {
    if (awaited == kNobody) awaited = look(*operation);
  }
  for (const auto& operation : calls_.operations()) {
    if (awaited == kNobody) awaited = look(*operation);
  }
  return awaited;
}

void Communicator::check_agreements() {
  const uint64_t now = port_.now_ns();
  const Timeouts& timeouts = port_.options().timeouts;
  // Members wait a little longer than their coordinator, who can name the culprit.
  const uint64_t patience = timeouts.peer_lost_ns * 3 / 2 + agreement_.undecided_making_ns();
  if (agreement_.undecided_since_ns() != 0 &&
      now - agreement_.undecided_since_ns() >= 2 * timeouts.prepare_ns + patience) {
    return fail({StatusCode::kPEER_LOST, "the coordinator, " + members_.machine_name(0) +
                                             ", never decided the plan it proposed"},
                Scope::kCommunicator);
  }
  const bool committing = std::any_of(local_.begin(), local_.end(),
                                      [](const LocalState& l) { return l.commit_request; });
  if (!committing) {
    commit_since_ns_ = 0;
  } else if (commit_since_ns_ == 0) {
    commit_since_ns_ = now;
  } else if (now - commit_since_ns_ >= timeout_ns_) {
    std::vector<uint32_t> missing = not_committing();
    peers_.add_not_committing(missing);
    std::string names;
    for (const uint32_t rank : missing) names += " rank " + std::to_string(rank);
    return fail({StatusCode::kTIMED_OUT, "the commit of " + members_.title() + " waits for" +
                                             (names.empty() ? " the coordinator" : names)},
                Scope::kCommunicator);
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
  awaited_ = awaited_machine();
  const Peers::Beat own = beat();
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k != members_.machine) send_heartbeat(k, own);
  }
}

Peers::Beat Communicator::beat() const {
  return {steps_.step(),
          calls_.completed_end(),
          missing_here(/*of_step=*/true, steps_.step()),
          missing_here(/*of_step=*/false, calls_.completed_end()),
          not_committing(),
          awaited_};
}

void Communicator::send_heartbeat(uint32_t machine, const Peers::Beat& own, uint64_t padded_bytes) {
  wire::FrameHeader header = header_for(wire::FrameType::kHeartbeat);
  header.progress = peers_.next_beat();
  send_to(machine, header, peers_.beat_for(machine, own, fine_now_ns(), padded_bytes), kNoSlab);
}

void Communicator::receive_heartbeat(const wire::FrameHeader& header,
                                     std::span<const std::byte> payload) {
  const Peers::News news = peers_.take_beat(header.source, header.progress, payload, fine_now_ns());
  if (!news.sound) {
    return fail(
        protocol_error(
            members_.machine_name(header.source) +
            " sent a heartbeat that names ranks which are not its own, or no machine of the job"),
        Scope::kCommunicator);
  }
  if (news.padded && state_ != State::kJoining) send_heartbeat(header.source, beat());
  if (news.padded_rtt_ns != 0 && probe_.take(news.padded_rtt_ns)) pilot_.hear_of_faster_link();
}

void Communicator::check_peers() {
  const uint64_t now = port_.now_ns();
  const Timeouts& timeouts = port_.options().timeouts;
  if (state_ == State::kJoining) {
    if (now - created_ns_ < timeouts.join_ns) return;
    return fail({StatusCode::kTIMED_OUT, members_.title() + " did not come together within " +
                                             std::to_string(timeouts.join_ns / 1'000'000'000) +
                                             " s; missing:" + joining_.missing(peers_)},
                Scope::kCommunicator);
  }
  const std::optional<uint32_t> silent =
      peers_.silent(now, timeouts.peer_lost_ns,
                    [this](uint32_t machine) { return port_.carried_ns(*this, machine); });
  if (!silent) return;
  const uint64_t silence_ns = now - peers_[*silent].last_heard_ns;
  port_.lose_link(*this, *silent,
                  {StatusCode::kPEER_LOST,
                   "no heartbeat for " + std::to_string(silence_ns / 1'000'000) + " ms"});
}

// The clock of a started operation runs only when every machine that it hears has announced it;
// then one that is needed and silent is at fault. Among more than two, whoever waits for what was
// reduced elsewhere waits longer: the machine that misses a first part knows better. A machine
// whose own site has not answered blames nobody.
void Communicator::check_stalled() {
  const uint64_t now = port_.now_ns();
  const uint64_t limit = port_.options().timeouts.stalled_ns;
  const auto check = [&](const Operation& operation) -> bool {
    if (now - operation.last_progress_ns() < limit || operation.tickets_open()) return false;
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      if (k == members_.machine || !operation.setup().schedule->hears(k)) continue;
      const bool announced = !operation.silent(k) || (operation.kind() == wire::StepKind::kStep &&
                                                      peers_[k].started_end > operation.step() + 1);
      if (!announced && !peers_[k].departed) return false;
    }
    for (uint32_t k = 0; k < members_.machines(); ++k) {
      const uint32_t round = k == members_.machine ? 0 : operation.waits_for(k);
      if (round == 0) continue;
      const uint64_t patience = members_.machines() > 2 ? (round - 1) * limit / 2 : 0;
      const uint64_t since = std::max(operation.last_progress_ns(), peers_[k].last_data_ns);
      const bool waits = now - since < limit + patience || excused(k, now - since, limit);
      if (waits && !peers_[k].departed) continue;
      const bool of_call = operation.kind() == wire::StepKind::kCall;
      const std::string what = of_call ? "call " + std::to_string(operation.step())
                                       : "group " + std::to_string(operation.group_index()) +
                                             " of step " + std::to_string(operation.step());
      fail({peers_[k].departed ? StatusCode::kCANCELLED : StatusCode::kOP_STALLED,
            what + " of " + members_.title() + " waits for " + members_.machine_name(k) +
                (peers_[k].departed ? ", whose ranks closed it"
                                    : ", which has sent nothing for " +
                                          std::to_string(limit / 1'000'000) + " ms")},
           peers_[k].departed ? Scope::kCommunicator : Scope::kStep);
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

Communicator::Waiting Communicator::waiting() const {
  Waiting waiting;
  const uint64_t step_since = steps_.waiting_since_ns();
  waiting.of_step = step_since != 0;
  waiting.since_ns = waiting.of_step ? step_since : calls_.oldest_wait_ns();
  waiting.number = waiting.of_step ? steps_.step() : calls_.completed_end();
  return waiting;
}

std::optional<Communicator::LateGpu> Communicator::late_gpu(const Operation& operation) const {
  const std::optional<AwaitedInput> awaited = operation.awaited_input();
  if (!awaited) return {};
  const OperationSetup& setup = operation.setup();
  for (const LocalRank& local : members_.local) {
    for (uint32_t arena = 0; arena < wire::kArenasMax; ++arena) {
      if (port_.arena(local.session, arena).id != awaited->arena) continue;
      const uint32_t tensor = setup.group->segments[awaited->segment].tensor;
      return LateGpu{local.rank, (*setup.table)[tensor].name};
    }
  }
  return {};
}

// Of the step's groups, or of the call.
std::vector<Communicator::LateGpu> Communicator::late_gpus(bool of_step, uint64_t number) const {
  std::vector<LateGpu> late;
  for (const auto& operation : of_step ? steps_.operations() : calls_.operations()) {
    if (operation->step() != number) continue;
    if (const auto one = late_gpu(*operation)) late.push_back(*one);
  }
  return late;
}

// Also those that have submitted everything, whose GPUs have not done it.
std::vector<uint32_t> Communicator::missing_here(bool of_step, uint64_t number) const {
  std::vector<uint32_t> missing = of_step ? steps_.missing_ranks() : calls_.missing_ranks();
  for (const LateGpu& late : late_gpus(of_step, number)) missing.push_back(late.rank);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

// As far as heartbeats have told.
std::vector<uint32_t> Communicator::late_ranks(const Waiting& waiting) const {
  std::vector<uint32_t> late = missing_here(waiting.of_step, waiting.number);
  peers_.add_missing(waiting.of_step, waiting.number, late);
  std::sort(late.begin(), late.end());
  return late;
}

// Nobody is late before every machine has said, since the waiting began, who is missing there.
void Communicator::show_late(std::vector<RankSnapshot>& ranks) const {
  const Waiting waits = waiting();
  const bool frozen = state_ == State::kFrozen || state_ == State::kFailed;
  if (waits.since_ns == 0 || frozen) return;
  const uint64_t waited_ns = port_.now_ns() - waits.since_ns;
  if (waited_ns < 2 * port_.options().timeouts.heartbeat_ns) return;
  for (const uint32_t rank : late_ranks(waits)) {
    if (rank < ranks.size()) ranks[rank].late_ns = waited_ns;
  }
}

// What only this machine knows of its late ranks.
std::string Communicator::gpus_text(const Waiting& waiting) const {
  std::string text;
  for (const LateGpu& late : late_gpus(waiting.of_step, waiting.number)) {
    const std::string whose = "; the GPU of rank " + std::to_string(late.rank);
    if (text.find(whose) != std::string::npos) continue;
    text += whose + " has not finished its gradient of tensor '" + late.tensor + "'";
  }
  return text;
}

// A rank that has not come is warned about by name at 5 s, 10 s, 20 s, ...; it is given up only at
// the communicator's own time-out.
void Communicator::check_late() {
  const uint64_t now = port_.now_ns();
  const Waiting waits = waiting();
  const uint64_t since = waits.since_ns;
  if (since == 0) {
    warning_step_ns_ = 0;
    return;
  }
  const uint64_t first_warning = port_.options().timeouts.late_warning_ns;
  if (warning_step_ns_ != since) {
    warning_step_ns_ = since;
    next_warning_ns_ = since + first_warning;
  }
  if (now < next_warning_ns_ && now - since < timeout_ns_) return;
  const std::vector<uint32_t> late = late_ranks(waits);
  if (late.empty() && now - since < timeout_ns_) return;
  std::string names;
  for (uint32_t rank : late) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const std::string text =
      members_.title() + ": " + (waits.of_step ? "step " : "call ") + std::to_string(waits.number) +
      " has waited " + std::to_string((now - since) / 1'000'000'000) + " s for " +
      (late.empty() ? std::string("the network") : "rank " + names) + gpus_text(waits);
  if (now - since >= timeout_ns_) {
    // Who waits for a local rank's word only, with all results here, is told, too.
    if (waits.of_step && steps_.results_end() > waits.number) attempts_.give_up(waits.number);
    return fail({StatusCode::kTIMED_OUT, text}, Scope::kStep);
  }
  next_warning_ns_ = since + 2 * (next_warning_ns_ - since);
  count(Counter::klate_rank_warnings, 1);
  for (const uint32_t rank : late) {
    record({.step = static_cast<uint32_t>(waits.number),
            .kind = EventKind::klate,
            .group = waits.of_step ? uint16_t{0} : Event::kCall,
            .peer = static_cast<uint16_t>(rank),
            .b = now - since});
  }
  port_.event(EventLevel::kWarning, text);
}

}  // namespace cgx::scheduler
