#include "scheduler/engine.h"

#include <algorithm>
#include <map>
#include <string>

#include "scheduler/communicator.h"
#include "scheduler/counted_port.h"
#include "scheduler/meetings.h"

namespace cgx::scheduler {
namespace {

constexpr uint64_t kSlabBytes = 256 * 1024;
constexpr uint64_t kLingerNs = 3'000'000'000;  // a link outlives its last communicator by this
constexpr uint64_t kDrainNs = 27'000'000'000;  // and by this more while frames wait to leave
constexpr uint64_t kOwnStallNs = 1'000'000'000;

}  // namespace

// All of the engine: sessions, communicators and the links between daemons.
class Engine::State final : public CommunicatorServices {
 public:
  struct Session {
    bool open = false;
    uint32_t generation = 0;
    SessionOptions options;
    std::unique_ptr<CountedPort> port;
    std::vector<std::span<std::byte>> arenas;
    uint64_t submits = 0;
    // Communicators by the session's handle, with the rank's index among the local ones.
    std::map<uint32_t, std::pair<Communicator*, uint32_t>> communicators;
  };
  struct Link {
    wire::JobKey job_key{};
    wire::InstanceId instance{};
    transport::PeerId peer;
    bool up = false, open = false;
    uint32_t users = 0;
    uint32_t sending = 0;      // frames whose payload has not left
    uint64_t close_at_ns = 0;  // when users is 0
  };
  struct Membership {  // a communicator's machine behind a link
    Communicator* communicator;
    uint32_t machine;
  };

  State(const EngineOptions& options, const EnginePorts& ports)
      : options_(options),
        ports_(ports),
        slabs_(std::make_shared<SlabStore>(kSlabBytes)),
        meetings_(options.limits.communicators) {}

  // --- CommunicatorServices ---
  const EngineOptions& options() const override { return options_; }
  const std::shared_ptr<SlabStore>& slabs() override { return slabs_; }
  uint64_t now_ns() const override { return now_ns_; }
  uint64_t plan_bytes_free() const override {
    uint64_t used = 0;
    for (const auto& communicator : communicators_) used += communicator->reserved_bytes();
    return used < options_.limits.plan_bytes ? options_.limits.plan_bytes - used : 0;
  }
  std::span<std::byte> arena(SessionId id, uint32_t arena) const override {
    const Session* session = find(id);
    if (session == nullptr || arena >= session->arenas.size()) return {};
    return session->arenas[arena];
  }
  void count(Counter counter, uint64_t amount) override {
    counters_[static_cast<size_t>(counter)] += amount;
  }
  void event(EventLevel level, const std::string& text) override {
    if (ports_.events != nullptr) ports_.events->event(level, text);
  }
  PlanLog* plan_log() override { return ports_.plans; }
  PlannerPort& planner() override {
    return ports_.planner != nullptr ? *ports_.planner : inline_planner_;
  }
  uint16_t new_index() override;
  void record(Event event) override {
    if (ports_.recorder == nullptr) return;
    if (event.time_ns == 0) event.time_ns = std::max(now_ns_, fine_ns_);
    ports_.recorder->record(event);
  }
  uint64_t fine_ns() override {
    if (ports_.recorder == nullptr) return 0;
    if (ports_.clock != nullptr) fine_ns_ = ports_.clock->now_ns();
    return std::max(now_ns_, fine_ns_);
  }
  Status send(transport::PeerId peer, wire::FrameHeader header, std::span<const std::byte> payload,
              SlabId slab) override;

  const Session* find(SessionId id) const {
    const bool known = id.index < sessions_.size() && sessions_[id.index].open &&
                       sessions_[id.index].generation == id.generation;
    return known ? &sessions_[id.index] : nullptr;
  }
  Session* find(SessionId id) {
    return const_cast<Session*>(static_cast<const State*>(this)->find(id));
  }
  Communicator* find_communicator(const SessionOptions& session, const std::string& name);
  Result<Communicator*> pick_communicator(const PolicyRequest& request);
  void open_links(const SessionOptions& session, Communicator& communicator);
  LinkId link_for(const SessionOptions& session, const Communicator& communicator,
                  uint32_t machine);
  void drop_closed_communicators();
  void close_idle_links();

  EngineOptions options_;
  EnginePorts ports_;
  InlinePlanner inline_planner_;
  std::shared_ptr<SlabStore> slabs_;
  uint64_t now_ns_ = 0, start_ns_ = 0;
  uint64_t worked_ns_ = 0;  // when do_work() was called last
  uint64_t fine_ns_ = 0;    // what the fine clock said last
  uint16_t last_index_ = 0;
  bool started_ = false;
  std::vector<Session> sessions_;
  Meetings meetings_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Link> links_;
  std::vector<std::vector<Membership>> memberships_;  // by link
  std::vector<LinkId> link_of_peer_;                  // by PeerId::index
  uint32_t turn_ = 0;
  Counters counters_{};
  std::map<uint64_t, std::vector<std::byte>> copied_payloads_;
  uint64_t next_copy_ = 1;
};

// Tokens: slab frames carry slab + 1, copied payloads the bit above with their number.
namespace {
constexpr transport::SendToken kCopyBit = uint64_t{1} << 63;
}

Status Engine::State::send(transport::PeerId peer, wire::FrameHeader header,
                           std::span<const std::byte> payload, SlabId slab) {
  transport::SendToken token = transport::kNoToken;
  std::span<const std::byte> stable = payload;
  if (slab != kNoSlab) {
    token = uint64_t{slab} + 1;
  } else if (!payload.empty()) {
    token = kCopyBit | next_copy_++;
    std::vector<std::byte>& copy = copied_payloads_[token];
    copy.assign(payload.begin(), payload.end());
    stable = copy;
  }
  count(Counter::kframes_sent, 1);
  const Status status =
      ports_.transport->send(peer, {std::as_bytes(std::span(&header, 1)), stable}, token);
  if (status.ok()) {
    if (token != transport::kNoToken) ++links_[link_of_peer_[peer.index]].sending;
    return {};
  }
  if (slab != kNoSlab) slabs_->release(slab);
  copied_payloads_.erase(token);
  const bool link_gone =
      status.code() == StatusCode::kPEER_LOST || status.code() == StatusCode::kNOT_FOUND ||
      status.code() == StatusCode::kUNAVAILABLE || status.code() == StatusCode::kCANCELLED;
  return link_gone ? Status() : resource_exhausted(status.message());  // on_peer_down tells
}

uint16_t Engine::State::new_index() {
  const auto used = [this](uint16_t index) {
    return std::any_of(communicators_.begin(), communicators_.end(),
                       [index](const auto& other) { return other->index() == index; });
  };
  do ++last_index_;
  while (last_index_ == 0 || used(last_index_));
  return last_index_;
}

Communicator* Engine::State::find_communicator(const SessionOptions& session,
                                               const std::string& name) {
  for (const auto& communicator : communicators_) {
    const Members& members = communicator->members();
    const bool same = members.uid == session.uid && members.job == session.job &&
                      members.name == name && communicator->state() != Communicator::State::kClosed;
    if (same) return communicator.get();
  }
  return nullptr;
}

// --- Links

LinkId Engine::State::link_for(const SessionOptions& session, const Communicator& communicator,
                               uint32_t machine) {
  const wire::InstanceId& instance = communicator.members().instances[machine];
  for (LinkId link = 0; link < links_.size(); ++link) {
    const Link& known = links_[link];
    if (known.open && known.job_key == communicator.job_key() && known.instance == instance) {
      return link;
    }
  }
  const auto unused = std::find_if(links_.begin(), links_.end(), [](const Link& known) {
    return !known.open && known.users == 0 && known.sending == 0;
  });
  const auto link = static_cast<LinkId>(unused - links_.begin());
  if (unused == links_.end()) {
    links_.emplace_back();
    memberships_.emplace_back();
  }
  links_[link] = {.job_key = communicator.job_key(), .instance = instance, .open = true};
  ports_.links->open_link(link, {.job = session.job,
                                 .uid = session.uid,
                                 .job_key = communicator.job_key(),
                                 .instance = instance,
                                 .mesh_address = communicator.members().addresses[machine]});
  return link;
}

void Engine::State::open_links(const SessionOptions& session, Communicator& communicator) {
  const Members& members = communicator.members();
  for (uint32_t machine = 0; machine < members.machines(); ++machine) {
    if (machine == members.machine) continue;
    const LinkId link = link_for(session, communicator, machine);
    ++links_[link].users;
    memberships_[link].push_back({&communicator, machine});
    if (links_[link].up) communicator.link_up(machine, links_[link].peer);
  }
}

void Engine::State::drop_closed_communicators() {
  for (size_t i = 0; i < communicators_.size();) {
    Communicator* const communicator = communicators_[i].get();
    if (communicator->state() != Communicator::State::kClosed) {
      ++i;
      continue;
    }
    for (LinkId link = 0; link < links_.size(); ++link) {
      const auto removed = std::erase_if(memberships_[link], [&](const Membership& member) {
        return member.communicator == communicator;
      });
      links_[link].users -= static_cast<uint32_t>(removed);
      if (removed > 0 && links_[link].users == 0) links_[link].close_at_ns = now_ns_ + kLingerNs;
    }
    for (Session& session : sessions_) {
      std::erase_if(session.communicators,
                    [&](const auto& entry) { return entry.second.first == communicator; });
    }
    record({.kind = EventKind::kclosed, .communicator = communicator->index()});
    communicators_.erase(communicators_.begin() + static_cast<int64_t>(i));
  }
}

// Last frames (results a peer still needs, the goodbye) leave before the link goes.
void Engine::State::close_idle_links() {
  for (LinkId link = 0; link < links_.size(); ++link) {
    Link& idle = links_[link];
    if (!idle.open || idle.users > 0 || now_ns_ < idle.close_at_ns) continue;
    if (idle.sending > 0 && now_ns_ < idle.close_at_ns + kDrainNs) continue;
    idle.open = false;
    if (idle.up) ports_.transport->close(idle.peer);
    idle.up = false;
    ports_.links->close_link(link);
  }
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

void Engine::link_up(LinkId id, transport::PeerId peer) {
  State::Link& link = state_->links_[id];
  if (!link.open || link.up) return;
  link.up = true;
  link.peer = peer;
  if (peer.index >= state_->link_of_peer_.size()) {
    state_->link_of_peer_.resize(peer.index + 1, UINT32_MAX);
  }
  state_->link_of_peer_[peer.index] = id;
  for (const State::Membership& member : std::vector(state_->memberships_[id])) {
    member.communicator->link_up(member.machine, peer);
  }
}

void Engine::link_down(LinkId id, const Status& why) {
  State::Link& link = state_->links_[id];
  if (!link.open) return;
  if (link.up) state_->ports_.transport->close(link.peer);
  link.open = link.up = false;
  for (const State::Membership& member : std::vector(state_->memberships_[id])) {
    member.communicator->link_lost(member.machine, why);
  }
}

void Engine::on_peer_down(transport::PeerId peer, const Status& why) {
  if (peer.index >= state_->link_of_peer_.size()) return;
  const LinkId id = state_->link_of_peer_[peer.index];
  if (id == UINT32_MAX || !(state_->links_[id].peer == peer)) return;
  State::Link& link = state_->links_[id];
  if (!link.open) return;
  link.open = link.up = false;
  state_->ports_.transport->close(peer);  // frees its id
  state_->ports_.links->close_link(id);
  for (const State::Membership& member : std::vector(state_->memberships_[id])) {
    member.communicator->link_lost(member.machine, why);
  }
}

void Engine::on_sent(transport::PeerId to, transport::SendToken token, const Status& status) {
  (void)status;  // a failed link reports itself through on_peer_down
  const auto link = std::find_if(state_->links_.begin(), state_->links_.end(),
                                 [&](const State::Link& known) { return known.peer == to; });
  if (link != state_->links_.end()) --link->sending;
  if (token & kCopyBit) {
    state_->copied_payloads_.erase(token);
  } else {
    state_->slabs_->release(static_cast<SlabId>(token - 1));
  }
}

void Engine::on_frame(transport::PeerId from, const transport::Frame& frame) {
  count(Counter::kframes_received);
  const LinkId id =
      from.index < state_->link_of_peer_.size() ? state_->link_of_peer_[from.index] : UINT32_MAX;
  if (id == UINT32_MAX || !state_->links_[id].open || !(state_->links_[id].peer == from)) {
    count(Counter::kframes_unexpected);
    return;
  }
  const Result<wire::FrameHeader> header = wire::open_frame(frame.header, frame.payload);
  if (!header.ok()) {
    count(Counter::kframes_corrupt);
    return link_down(id, header.status());
  }
  for (const State::Membership& member : state_->memberships_[id]) {
    if (member.communicator->members().id != header->communicator) continue;
    if (member.machine != header->source) {
      return link_down(
          id, protocol_error("frame of machine " + std::to_string(header->source) +
                             " came over the link of machine " + std::to_string(member.machine)));
    }
    return member.communicator->receive(*header, frame.payload);
  }
  count(Counter::kframes_unexpected);
}

// --- Sessions

Result<SessionId> Engine::open_session(const SessionOptions& options, SessionPort& port) {
  uint32_t open = 0;
  uint32_t index = static_cast<uint32_t>(state_->sessions_.size());
  for (uint32_t i = 0; i < state_->sessions_.size(); ++i) {
    open += state_->sessions_[i].open;
    if (!state_->sessions_[i].open) index = i;
  }
  if (open >= state_->options_.limits.sessions) {
    count(Counter::ksessions_refused);
    return resource_exhausted("limits.sessions (" +
                              std::to_string(state_->options_.limits.sessions) +
                              ") sessions are open");
  }
  if (index == state_->sessions_.size()) state_->sessions_.emplace_back();
  State::Session& session = state_->sessions_[index];
  session = {.open = true,
             .generation = session.generation + 1,
             .options = options,
             .port = std::make_unique<CountedPort>(port),
             .arenas = {},
             .communicators = {}};
  count(Counter::ksessions_opened);
  return SessionId{index, session.generation};
}

Status Engine::add_arena(SessionId id, uint32_t arena, std::span<std::byte> memory) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return {StatusCode::kNOT_FOUND, "no such session"};
  if (arena != session->arenas.size() || arena >= wire::kArenasMax) {
    return invalid_argument("arena " + std::to_string(arena) + " is not the next one (" +
                            std::to_string(session->arenas.size()) + " of at most " +
                            std::to_string(wire::kArenasMax) + ")");
  }
  session->arenas.push_back(memory);
  return {};
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
    Communicator* const joining = state_->find_communicator(comer.process, comer.name);
    if (joining != nullptr) joining->miss_rank(comer.rank, gone);
  }
  if (!why.ok()) count(Counter::ksessions_lost);
  session->open = false;
  session->port.reset();
  session->arenas.clear();
  state_->drop_closed_communicators();
}

bool Engine::session_in_use(SessionId id) const {
  return std::any_of(state_->communicators_.begin(), state_->communicators_.end(),
                     [&](const auto& communicator) { return communicator->uses(id); });
}

void Engine::meet(SessionId id, uint32_t request, const wire::Meet& message) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  const Communicator* const met = state_->find_communicator(session->options, message.name);
  const Status status = met != nullptr && met->has(message.rank)
                            ? met->is_alive(message.rank)
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
  Communicator* communicator = state_->find_communicator(session->options, message.name);
  if (communicator != nullptr && communicator->gives_way_to(message)) {
    communicator = nullptr;
    state_->drop_closed_communicators();
  }
  if (communicator == nullptr) {
    if (state_->communicators_.size() >= state_->options_.limits.communicators) {
      return refuse(resource_exhausted("limits.communicators (" +
                                       std::to_string(state_->options_.limits.communicators) +
                                       ") communicators exist"));
    }
    Result<std::unique_ptr<Communicator>> made =
        Communicator::create(session->options, message, *state_);
    if (!made.ok()) return refuse(made.status());
    communicator = made->get();
    if (communicator->members().machines() > 1 && state_->ports_.transport == nullptr) {
      return refuse({StatusCode::kUNAVAILABLE, "this daemon has no transport"});
    }
    state_->record({.kind = EventKind::kmade,
                    .communicator = communicator->index(),
                    .a = communicator->members().ranks(),
                    .b = communicator->members().machines()});
    state_->communicators_.push_back(std::move(*made));
    state_->open_links(session->options, *communicator);
  }
  const auto& local = communicator->members().local;
  const auto found = std::find_if(local.begin(), local.end(),
                                  [&](const LocalRank& rank) { return rank.rank == message.rank; });
  const bool free_rank = found != local.end() && found->port == nullptr;
  communicator->join({id, session->port.get(), request}, message);
  if (free_rank && found->port != nullptr) {
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

void Engine::register_tensors(SessionId id, uint32_t request,
                              const wire::RegisterTensors& message) {
  CGX_FIND_MEMBER(message.comm);
  found->second.first->register_tensors(found->second.second, message);
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

void Engine::close_communicator(SessionId id, const wire::CloseCommunicator& message) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return;
  state_->meetings_.leave(id, message.comm);
  const auto found = session->communicators.find(message.comm);
  if (found == session->communicators.end()) return;
  const auto [communicator, local] = found->second;
  session->communicators.erase(found);
  communicator->leave(local);
  state_->drop_closed_communicators();
}

Status Engine::submit(SessionId id, const cgx_submit_record& record) {
  State::Session* const session = state_->find(id);
  if (session == nullptr) return {StatusCode::kNOT_FOUND, "no such session"};
  ++session->submits;
  const auto found = session->communicators.find(record.comm);
  if (found == session->communicators.end()) {
    return protocol_error("submit to communicator handle " + std::to_string(record.comm) +
                          ", which this session has not created");
  }
  return found->second.first->submit(found->second.second, record);
}

// --- Operators

Snapshot Engine::snapshot(uint64_t now_ns) const {
  Snapshot shown;
  shown.uptime_ns = now_ns - state_->start_ns_;
  shown.counters = state_->counters_;
  for (const auto& communicator : state_->communicators_) {
    shown.communicators.push_back(communicator->snapshot());
    communicator->add_peers(shown.peers);
  }
  for (const State::Session& session : state_->sessions_) {
    if (!session.open) continue;
    uint64_t arena_bytes = 0;
    for (const auto& arena : session.arenas) arena_bytes += arena.size();
    shown.sessions.push_back(SessionSnapshot{.uid = session.options.uid,
                                             .pid = session.options.pid,
                                             .job = session.options.job,
                                             .arena_bytes = arena_bytes,
                                             .submits = session.submits,
                                             .completions = session.port->completions()});
  }
  return shown;
}

Result<Communicator*> Engine::State::pick_communicator(const PolicyRequest& request) {
  std::vector<Communicator*> matching;
  std::string names;
  for (const auto& communicator : communicators_) {
    const Members& members = communicator->members();
    if (!request.any_uid && members.uid != request.uid) continue;
    names += (names.empty() ? "" : ", ") + members.job + "/" + members.name;
    if (!request.job.empty() && members.job != request.job) continue;
    if (!request.communicator.empty() && members.name != request.communicator) continue;
    matching.push_back(communicator.get());
  }
  if (matching.size() == 1) return matching[0];
  return Status(
      matching.empty() ? StatusCode::kNOT_FOUND : StatusCode::kINVALID_ARGUMENT,
      (matching.empty() ? "no communicator matches job '" : "several communicators match job '") +
          request.job + "', communicator '" + request.communicator +
          "'; there are: " + (names.empty() ? "none" : names));
}

void Engine::apply_policy(const PolicyRequest& request, PolicyAnswer answer) {
  const Result<Communicator*> communicator = state_->pick_communicator(request);
  if (!communicator.ok()) return answer(communicator.status());
  (*communicator)->apply_policy(request.policy, request.dry_run, std::move(answer));
}

void Engine::count(Counter counter, uint64_t amount) {
  state_->count(counter, amount);
}

// --- Time

void Engine::begin_round(uint64_t now_ns) {
  state_->now_ns_ = now_ns;
}

int Engine::do_work(uint64_t now_ns) {
  if (!state_->started_) state_->start_ns_ = now_ns;
  const bool stalled = state_->started_ && now_ns - state_->worked_ns_ > kOwnStallNs;
  const bool long_sleep = stalled && next_deadline_ns() + kOwnStallNs < now_ns;
  state_->started_ = true;
  state_->now_ns_ = state_->worked_ns_ = now_ns;
  int worked = 0;
  const size_t count = state_->communicators_.size();
  for (size_t i = 0; i < count; ++i) {
    Communicator& communicator = *state_->communicators_[(state_->turn_ + i) % count];
    if (long_sleep) communicator.forgive_silence();
    // Weighted round robin over parts: a job of weight 2 does two parts while another does one.
    for (uint32_t share = 0; share < communicator.weight() && communicator.work(); ++share) {
      ++worked;
    }
    communicator.tick();
  }
  ++state_->turn_;
  state_->drop_closed_communicators();
  state_->close_idle_links();
  return worked;
}

uint64_t Engine::next_deadline_ns() const {
  uint64_t next = UINT64_MAX;
  for (const auto& communicator : state_->communicators_) {
    next = std::min(next, communicator->next_deadline_ns());
  }
  for (const State::Link& link : state_->links_) {
    if (!link.open || link.users > 0) continue;
    next = std::min(next, link.close_at_ns + (link.sending > 0 ? kDrainNs : 0));
  }
  return next;
}

bool Engine::operations_open() const {
  return std::any_of(state_->communicators_.begin(), state_->communicators_.end(),
                     [](const auto& communicator) { return communicator->operations_open(); });
}

}  // namespace cgx::scheduler
