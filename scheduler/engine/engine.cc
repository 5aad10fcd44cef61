#include "scheduler/engine/engine.h"

#include <algorithm>
#include <string>

#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kOwnStallNs = 1'000'000'000;

}  // namespace

uint16_t Engine::State::new_index() {
  const auto used = [this](uint16_t index) {
    return std::any_of(communicators_.begin(), communicators_.end(),
                       [index](const auto& other) { return other->index() == index; });
  };
  do ++last_index_;
  while (last_index_ == 0 || used(last_index_));
  return last_index_;
}

std::vector<Communicator*> Engine::State::named(const SessionOptions& session,
                                                const std::string& name) {
  std::vector<Communicator*> found;
  for (const auto& communicator : communicators_) {
    const Members& members = communicator->members();
    const bool same = members.uid == session.uid && members.job == session.job &&
                      members.name == name && communicator->state() != Communicator::State::kClosed;
    if (same) found.push_back(communicator.get());
  }
  return found;
}

Communicator* Engine::State::find_communicator(const SessionOptions& session,
                                               const std::string& name,
                                               const wire::DeviceId& device) {
  for (Communicator* const one : named(session, name)) {
    if (one->members().devices[one->members().machine] == device) return one;
  }
  return nullptr;
}

// The other sites of this daemon have heard the same of the meeting.
Status Engine::State::check_siblings(const SessionOptions& session,
                                     const wire::CreateCommunicator& message) {
  for (const Communicator* const other : named(session, message.name)) {
    if (other->living()) CGX_RETURN_IF_ERROR(other->compare(message));
  }
  return {};
}

// Whoever comes to another meeting of its name has nothing to do with why it failed.
Status Engine::State::still_held(const Communicator& communicator, const Status& failure) const {
  const Members& members = communicator.members();
  std::string who = "a process of this machine";
  for (const LocalRank& local : members.local) {
    const Session* const session = local.port != nullptr ? find(local.session) : nullptr;
    if (session == nullptr || session->options.pid == 0) continue;
    who = "process " + std::to_string(session->options.pid);
    break;
  }
  return {StatusCode::kALREADY_EXISTS, who + " still holds " + members.title() +
                                           " of an earlier meeting, which failed (" +
                                           failure.message() + "): close it there"};
}

// A rank that closed may use its memory again: nothing of the communicator is read or written
// there.
void Engine::State::answer_closings() {
  std::erase_if(closings_, [this](const Closing& closing) {
    if (closing.communicator->tickets_open()) return false;
    Session* const session = find(closing.session);
    if (session != nullptr) session->port->reply(closing.request, {});
    return true;
  });
}

void Engine::State::drop_closed_communicators() {
  answer_closings();
  for (size_t i = 0; i < communicators_.size();) {
    Communicator* const communicator = communicators_[i].get();
    if (communicator->state() != Communicator::State::kClosed || communicator->tickets_open()) {
      ++i;
      continue;
    }
    links_.leave(*communicator, now_ns_);
    for (Session& session : sessions_) {
      std::erase_if(session.communicators,
                    [&](const auto& entry) { return entry.second.first == communicator; });
    }
    keep_residuals(*communicator);
    record({.kind = EventKind::kclosed, .communicator = communicator->index()});
    Turns::leave(account_of(*communicator));
    communicators_.erase(communicators_.begin() + static_cast<int64_t>(i));
    share_thread();
  }
}

// For the next communicator of the name.
void Engine::State::keep_residuals(Communicator& communicator) {
  KeptResiduals kept = communicator.take_residuals();
  if (!kept.mark.any() || kept.residuals.empty()) return release(kept.residuals.take_all());
  const Members& members = communicator.members();
  const bool in_session = sessions_of({.job = members.job, .uid = members.uid}) > 0;
  residuals_.keep(communicator.owner(), std::move(kept),
                  in_session ? UINT64_MAX : now_ns_ + options_.timeouts.residuals_ns);
}

// What nobody borrowed in time, or stands in the way of plans.
void Engine::State::free_residuals() {
  if (residuals_.bytes() == 0) return;
  uint64_t room = options_.limits.plan_bytes;
  for (const auto& communicator : communicators_) {
    room -= std::min(room, communicator->reserved_bytes());
  }
  for (Residuals& expired : residuals_.take_expired(now_ns_, room)) {
    release(expired.take_all());
  }
}

void Engine::State::release(std::vector<Residuals::Memory> memory) {
  if (memory.empty()) return;
  planner().release(std::make_shared<const std::vector<Residuals::Memory>>(std::move(memory)));
}

void Engine::State::site_answered(Ticket ticket, const SiteAnswer& answer) {
  const auto found = expected_.extract(ticket);
  CGX_ASSERT(!found.empty());
  found.mapped().communicator->settle(*found.mapped().operation, ticket, answer);
}

bool Engine::State::in_use(SessionId id) const {
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [&](const auto& communicator) { return communicator->uses(id); });
}

void Engine::State::forget_arenas() {
  std::erase_if(left_arenas_, [this](const auto& left) {
    if (in_use(left.first)) return false;
    for (const ArenaId arena : left.second) arenas_.remove(arena);
    return true;
  });
}

int Engine::State::poll_sites() {
  int answered = 0;
  for (auto& [id, place] : sites_) {
    answered += place.site->poll(*this, now_ns_);
    const Status lost = place.site->lost();
    if (lost.ok()) continue;
    for (const auto& communicator : communicators_) {
      if (communicator->members().site == id) communicator->lose_site(lost);
    }
  }
  return answered;
}

// Where its arenas, communicators and frames have all gone.
void Engine::State::close_sites() {
  for (auto each = sites_.begin(); each != sites_.end();) {
    const auto& [id, place] = *each;
    const bool used = !place.leaves || !place.slabs->idle() ||
                      std::any_of(communicators_.begin(), communicators_.end(),
                                  [id = id](const auto& one) { return one->members().site == id; });
    if (!used) {
      for (Residuals& kept : residuals_.take_of(id)) release(kept.take_all());
    }
    each = used ? std::next(each) : sites_.erase(each);
  }
}

Result<SiteId> Engine::State::site_of(const Session& session,
                                      const wire::CreateCommunicator& message) const {
  if (message.arena == wire::kNoArena) return kHostSite;
  if (message.arena < session.arenas.size()) return arenas_.site(session.arenas[message.arena]);
  return invalid_argument("communicator '" + message.name + "' names arena " +
                          std::to_string(message.arena) + " of a session with " +
                          std::to_string(session.arenas.size()));
}

// One that has been closed has been left by all.
Status Engine::State::lost(SiteId site) const {
  const auto found = sites_.find(site);
  if (found != sites_.end()) return found->second.site->lost();
  return {StatusCode::kDEVICE_LOST, "its GPU worker has ended"};
}

SiteId Engine::add_site(std::shared_ptr<SlabMemory> memory, const SiteBuilder& build) {
  const SiteId id = ++state_->last_site_;
  State::Workplace& place = state_->sites_[id];
  place.slabs = std::make_shared<SlabStore>(State::kSlabBytes, std::move(memory));
  place.site = build(place.slabs, state_->arenas_);
  return id;
}

bool Engine::close_site(SiteId site) {
  const auto found = state_->sites_.find(site);
  if (found == state_->sites_.end()) return true;
  found->second.leaves = true;
  return false;
}

bool Engine::keep_site(SiteId site) {
  const auto found = state_->sites_.find(site);
  if (found == state_->sites_.end()) return false;
  found->second.leaves = false;
  return true;
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options,
                                               const EnginePorts& ports) {
  if (options.lane == nullptr) return internal_error("EngineOptions::lane is not set");
  if ((ports.transport == nullptr) != (ports.links == nullptr)) {
    return internal_error("EnginePorts needs both transport and links, or neither");
  }
  return std::unique_ptr<Engine>(new Engine(std::make_unique<State>(options, ports)));
}

void EventSink::note(EventLevel level, std::string_view text, std::span<const EventField> fields) {
  std::string line(text);
  for (const EventField& field : fields)
    line.append(" ").append(field.key).append("=" + field.text);
  event(level, line);
}

Result<SessionId> Engine::open_session(const SessionOptions& options, SessionPort& port) {
  if (!state_->draining_.ok()) return state_->draining_;
  uint32_t index = static_cast<uint32_t>(state_->sessions_.size());
  for (uint32_t i = 0; i < state_->sessions_.size(); ++i) {
    if (!state_->sessions_[i].open) index = i;
  }
  SessionOptions known = options;
  if (known.holder.empty()) known.holder = "uid " + std::to_string(options.uid);
  if (Status room = state_->session_share().check(known.holder); !room.ok()) {
    count(Counter::ksessions_refused);
    return room;
  }
  if (index == state_->sessions_.size()) state_->sessions_.emplace_back();
  State::Session& session = state_->sessions_[index];
  session = {.open = true,
             .generation = session.generation + 1,
             .options = std::move(known),
             .port = nullptr,
             .arenas = {},
             .communicators = {}};
  session.port = std::make_unique<CountedPort>(port);
  count(Counter::ksessions_opened);
  if (state_->sessions_of(options) == 1) {
    state_->residuals_.free_at(options.uid, options.job, UINT64_MAX);
    state_->note(EventLevel::kInfo, "job begins", {{"job", options.job}, {"uid", options.uid}});
  }
  return SessionId{index, session.generation};
}

void Engine::close_session(SessionId id, const Status& why) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  const auto communicators = std::move(session->communicators);
  session->communicators.clear();
  for (const auto& [handle, member] : communicators) {
    if (why.ok()) {
      member.first->leave(member.second);
    } else {
      member.first->lose_rank(member.second, why);
    }
  }
  const std::string gone = why.ok() ? "it left" : why.message();
  for (const Comer& comer : state_->meetings_.lose(id, gone)) {
    for (Communicator* const joining : state_->named(comer.process, comer.name)) {
      joining->miss_rank(comer.rank, gone);
    }
  }
  if (!why.ok()) count(Counter::ksessions_lost);
  session->open = false;
  if (state_->sessions_of(session->options) == 0) {
    const SessionOptions& last = session->options;
    state_->residuals_.free_at(last.uid, last.job,
                               state_->now_ns_ + state_->options_.timeouts.residuals_ns);
    state_->note(why.ok() ? EventLevel::kInfo : EventLevel::kWarning, "job ends",
                 {{"job", last.job}, {"uid", last.uid}, {"cause", gone}});
  }
  session->port.reset();
  state_->left_arenas_.emplace_back(id, std::exchange(session->arenas, {}));
  state_->drop_closed_communicators();
}

bool Engine::session_in_use(SessionId id) const {
  return state_->in_use(id);
}

void Engine::meet(SessionId id, uint32_t request, const wire::Meet& message) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  const std::vector<Communicator*> known = state_->named(session->options, message.name);
  const auto met = std::find_if(known.begin(), known.end(),
                                [&](const Communicator* one) { return one->has(message.rank); });
  const Status status = met != known.end() ? (*met)->is_alive(message.rank)
                                           : state_->meetings_.come(id, session->options, message);
  session->port->reply(request, {status.code(), status.message()});
}

void Engine::create_communicator(SessionId id, uint32_t request,
                                 const wire::CreateCommunicator& message) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  state_->meetings_.leave(id, message.comm);
  const auto refuse = [&](const Status& status) {
    session->port->reply(request, {status.code(), status.message()});
  };
  if (session->communicators.count(message.comm) > 0) {
    return refuse(
        {StatusCode::kALREADY_EXISTS,
         "communicator handle " + std::to_string(message.comm) + " is in use by this session"});
  }
  const Result<SiteId> site = state_->site_of(*session, message);
  if (!site.ok()) return refuse(site.status());
  // Before its rank joins: with an arena of another worker it may come again.
  if (const Status lost = state_->lost(*site); !lost.ok()) return refuse(lost);
  const wire::DeviceId device = message.rank < message.members.size()
                                    ? message.members[message.rank].device
                                    : wire::DeviceId{};
  Communicator* communicator = state_->find_communicator(session->options, message.name, device);
  if (communicator != nullptr && communicator->gives_way_to(message)) {
    communicator = nullptr;
    state_->drop_closed_communicators();
  }
  if (!state_->draining_.ok()) return refuse(state_->draining_);
  if (communicator != nullptr) {
    const Status failure = communicator->stands_in_the_way_of(message);
    if (!failure.ok()) return refuse(state_->still_held(*communicator, failure));
  }
  if (communicator == nullptr) {
    const Status room = state_->communicator_share().check(session->options.holder);
    if (!room.ok()) return refuse(room);
    const Status same = state_->check_siblings(session->options, message);
    if (!same.ok()) return refuse(same);
    Result<std::unique_ptr<Communicator>> made =
        Communicator::create(session->options, message, *site, *state_);
    if (!made.ok()) return refuse(made.status());
    communicator = made->get();
    if (!communicator->members().alone() && state_->ports_.transport == nullptr) {
      return refuse({StatusCode::kUNAVAILABLE, "this daemon has no transport"});
    }
    if (const Status links = state_->check_links(*communicator); !links.ok()) return refuse(links);
    state_->record({.kind = EventKind::kmade,
                    .communicator = communicator->index(),
                    .a = communicator->members().ranks(),
                    .b = communicator->members().machines()});
    state_->open_account(*communicator);
    state_->communicators_.push_back(std::move(*made));
    state_->share_thread();
    state_->links_.open(*communicator, state_->now_ns_, 2 * state_->options_.timeouts.heartbeat_ns);
    std::vector<Communicator*> others = state_->named(session->options, message.name);
    std::erase(others, communicator);
    Siblings::meet(*communicator, others);
  }
  const auto& local = communicator->members().local;
  const auto found = std::find_if(local.begin(), local.end(),
                                  [&](const LocalRank& rank) { return rank.rank == message.rank; });
  const bool free_rank = found != local.end() && found->port == nullptr;
  communicator->join({id, session->port.get(), request, *site}, message);
  if (free_rank && found->port != nullptr) {
    if (!message.staged.empty()) count(Counter::kdevice_ranks_staged);
    session->handles_end = std::max(session->handles_end, message.comm + uint64_t{1});
    session->communicators[message.comm] = {communicator,
                                            static_cast<uint32_t>(found - local.begin())};
  }
  state_->drop_closed_communicators();
}

#define CGX_FIND_MEMBER(comm_handle)                                                          \
  State::Session* const session = state_->find(id);                                           \
  if (session == nullptr) return;                                                             \
  const auto found = session->communicators.find(comm_handle);                                \
  if (found == session->communicators.end()) {                                                \
    session->port->reply(                                                                     \
        request, {StatusCode::kNOT_FOUND, "no communicator " + std::to_string(comm_handle)}); \
    return;                                                                                   \
  }

void Engine::register_tensors(SessionId id, uint32_t request, wire::RegisterTensors message) {
  CGX_FIND_MEMBER(message.comm);
  found->second.first->register_tensors(found->second.second, std::move(message));
}

void Engine::commit(SessionId id, uint32_t request, const wire::Commit& message) {
  CGX_FIND_MEMBER(message.comm);
  found->second.first->commit(found->second.second, request, message);
}

void Engine::redo_step(SessionId id, uint32_t request, const wire::RedoStep& message) {
  CGX_FIND_MEMBER(message.comm);
  found->second.first->redo(found->second.second, request);
}
#undef CGX_FIND_MEMBER

void Engine::close_communicator(SessionId id, uint32_t request,
                                const wire::CloseCommunicator& message) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  state_->meetings_.leave(id, message.comm);
  const auto found = session->communicators.find(message.comm);
  if (found == session->communicators.end()) return session->port->reply(request, {});
  const auto [communicator, local] = found->second;
  session->communicators.erase(found);
  communicator->leave(local);
  state_->closings_.push_back({id, request, communicator});
  state_->drop_closed_communicators();
}

Status Engine::submit(SessionId id, const cgx_submit_record& record) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return {StatusCode::kNOT_FOUND, "no such session"};
  ++session->submits;
  const auto found = session->communicators.find(record.comm);
  if (found == session->communicators.end()) {
    // It has closed this one, and its message was read before the ring.
    if (record.comm < session->handles_end) return {};
    return protocol_error("submit to communicator handle " + std::to_string(record.comm) +
                          ", which this session has not created");
  }
  return found->second.first->submit(found->second.second, record);
}

Snapshot Engine::snapshot(uint64_t now_ns) const {
  Snapshot shown;
  for (const uint16_t index : communicators()) add_communicator(index, shown);
  add_totals(now_ns, shown);
  return shown;
}

std::vector<uint16_t> Engine::communicators() const {
  std::vector<uint16_t> indices;
  for (const auto& communicator : state_->communicators_) indices.push_back(communicator->index());
  return indices;
}

void Engine::add_communicator(uint16_t index, Snapshot& shown) const {
  for (const auto& communicator : state_->communicators_) {
    if (communicator->index() != index) continue;
    if (communicator->state() == Communicator::State::kClosed) return;
    shown.communicators.push_back(communicator->snapshot());
    return communicator->add_peers(shown.peers);
  }
}

void Engine::add_totals(uint64_t now_ns, Snapshot& shown) const {
  shown.uptime_ns = now_ns - state_->start_ns_;
  shown.counters = state_->counters_;
  shown.links = state_->links_.open_count();
  shown.residual_bytes = state_->residuals_.bytes();
  shown.shares = state_->shares();
  for (const State::Session& session : state_->sessions_) {
    if (!session.open) continue;
    uint64_t arena_bytes = 0;
    for (const ArenaId arena : session.arenas) arena_bytes += state_->arenas_.bytes(arena);
    shown.sessions.push_back(SessionSnapshot{.uid = session.options.uid,
                                             .pid = session.options.pid,
                                             .job = session.options.job,
                                             .arena_bytes = arena_bytes,
                                             .arenas = static_cast<uint32_t>(session.arenas.size()),
                                             .submits = session.submits,
                                             .completions = session.port->completions()});
  }
}

Result<CommunicatorSnapshot> Engine::show(SessionId id, uint32_t comm) const {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return Status(StatusCode::kNOT_FOUND, "no such session");
  const auto found = session->communicators.find(comm);
  if (found != session->communicators.end()) return found->second.first->snapshot();
  return Status(StatusCode::kNOT_FOUND,
                "this session has no communicator of handle " + std::to_string(comm));
}

void Engine::change(Changes changes) {
  state_->options_.policy = std::move(changes.policy);
  state_->options_.job_weights = std::move(changes.job_weights);
  state_->options_.timeouts = changes.timeouts;
  state_->options_.limits = changes.limits;
  if (state_->ports_.transport == nullptr) return;
  const uint64_t ms = changes.timeouts.peer_lost_ns / 1'000'000;
  state_->ports_.transport->lose_after(static_cast<uint32_t>(std::min<uint64_t>(ms, UINT32_MAX)));
}

void Engine::drain(const std::string& why) {
  state_->draining_ = Status(StatusCode::kUNAVAILABLE, why);
}

std::vector<std::string> Engine::undrained() const {
  std::vector<std::string> names;
  for (const auto& communicator : state_->communicators_) {
    if (!communicator->living()) continue;
    names.push_back(communicator->members().title() + " in step " +
                    std::to_string(communicator->step()));
  }
  return names.empty() ? last_frames() : names;  // those that live send heartbeats
}

std::vector<std::string> Engine::last_frames() const {
  std::vector<std::string> names;
  for (const std::string& address : state_->links_.owing()) {
    names.push_back("the last frames for " + address);
  }
  return names;
}

std::vector<std::string> Engine::in_flight() const {
  std::vector<std::string> all;
  for (const auto& communicator : state_->communicators_) {
    std::string one = communicator->in_flight();
    if (!one.empty()) all.push_back(std::move(one));
  }
  return all;
}

void Engine::count(Counter counter, uint64_t amount) {
  state_->count(counter, amount);
}

void Engine::begin_round(uint64_t now_ns) {
  state_->now_ns_ = now_ns;
}

int Engine::do_work(uint64_t now_ns) {
  if (!state_->started_) state_->start_ns_ = now_ns;
  const bool stalled = state_->started_ && now_ns - state_->worked_ns_ > kOwnStallNs;
  const bool long_sleep = stalled && next_deadline_ns() + kOwnStallNs < now_ns;
  state_->started_ = true;
  state_->now_ns_ = state_->worked_ns_ = now_ns;
  int worked = state_->poll_sites() + state_->deliver_beside();
  const size_t count = state_->communicators_.size();
  for (size_t i = 0; long_sleep && i < count; ++i) state_->communicators_[i]->forgive_silence();
  if (count > 0) worked += state_->take_turns();
  for (size_t i = 0; i < count; ++i) {
    Communicator& communicator = *state_->communicators_[(state_->turn_ + i) % count];
    if (!state_->draining_.ok()) communicator.leave_at_border(state_->draining_);
    communicator.tick();
    communicator.sweep();
  }
  ++state_->turn_;
  state_->drop_closed_communicators();
  state_->free_residuals();
  state_->forget_arenas();
  state_->close_sites();
  state_->links_.close_idle(now_ns);
  return worked;
}

uint64_t Engine::next_deadline_ns() const {
  if (!state_->siblings_.empty()) return 0;
  uint64_t next = UINT64_MAX;
  for (const auto& communicator : state_->communicators_) {
    next = std::min(next, communicator->next_deadline_ns());
  }
  for (const auto& [id, place] : state_->sites_)
    next = std::min(next, place.site->next_answer_ns());
  return std::min({next, state_->links_.next_closing_ns(), state_->residuals_.next_ns()});
}

bool Engine::operations_open() const {
  return std::any_of(state_->communicators_.begin(), state_->communicators_.end(),
                     [](const auto& communicator) { return communicator->operations_open(); });
}

}  // namespace cgx::scheduler
