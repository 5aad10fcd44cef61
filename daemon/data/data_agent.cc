#include "daemon/data/data_agent.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "daemon/base/clock.h"
#include "daemon/data/late_transport.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;
enum Tag : uint64_t { kMailboxTag, kTransportTag, kDoorbellTag, kWorkerTag };

// Waiting messages may hold a packet each (96 KiB); whoever posts session requests waits for room.
constexpr size_t kMailboxCapacity = 1024;
constexpr int kMessagesPerRound = 64;
// A client empties its full completion ring without telling us; a closed session's last operation
// ends without an event of its own.
constexpr uint64_t kLookAgainNs = 2 * kMillisecond;
constexpr uint64_t kBeatNs = 400 * kMillisecond;
constexpr const char* kLinkMessage = "a link to another machine";

wire::Reply to_reply(const Status& status) {
  return {status.code(), status.message(), 0, 0};
}

}  // namespace

// Transport and engine need each other; the transport is made first and speaks to this. A frame of
// a peer that is connected but not up proves what the mesh is about to say: both sides are
// connected.
class DataAgent::EventRelay final : public transport::Events {
 public:
  explicit EventRelay(DataAgent& data) : data_(data) {}

  void on_frame(transport::PeerId from, const transport::Frame& frame) override {
    if (const LinkSerial serial = data_.connecting_.find(from)) data_.bring_up(serial);
    data_.engine_->on_frame(from, frame);
  }
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override {
    data_.engine_->on_sent(to, token, status);
  }
  void on_peer_down(transport::PeerId peer, const Status& why) override {
    if (const LinkSerial serial = data_.connecting_.find(peer)) data_.refuse(serial, why);
    data_.engine_->on_peer_down(peer, why);
  }
  void on_bytes(transport::PeerId from) override { data_.engine_->on_bytes(from); }

 private:
  DataAgent& data_;
};

// What a second thread computes is not in the rounds of this one.
class DataAgent::DutyClock final : public scheduler::Clock {
 public:
  DutyClock(const DutyCycle& duty, bool computes_all) : duty_(duty), computes_all_(computes_all) {}
  uint64_t now_ns() const override { return monotonic_ns(); }
  uint64_t busy_ns() const override { return computes_all_ ? duty_.busy_ns() : 0; }

 private:
  const DutyCycle& duty_;
  const bool computes_all_;
};

struct DataAgent::OpenedSession {
  SessionSerial serial;
  std::string holder;
  scheduler::SessionId id;
  Session session;
  std::vector<SharedRegion> arenas;
  std::vector<std::shared_ptr<gpu::DeviceArena>> device_arenas;
  Status fault;  // why it must be evicted; found while its ring was read or written
};

DataAgent::DataAgent(DataOptions options, TransportFactory make_transport, EdgeCounters& counters,
                     scheduler::EventSink& events)
    : options_(std::move(options)),
      make_transport_(std::move(make_transport)),
      counters_(counters),
      events_(events),
      mailbox_(kMailboxCapacity),
      relay_(std::make_unique<EventRelay>(*this)),
      clock_(std::make_unique<DutyClock>(duty_, options_.site == nullptr)) {
  if (!options_.recorder_memory.empty()) recorder_.emplace(options_.recorder_memory);
}

DataAgent::~DataAgent() = default;

void DataAgent::connect(SessionAnswers* answers, LinkMaker* links,
                        scheduler::PlannerPort* planner) {
  answers_ = answers;
  links_out_ = links;
  planner_ = planner;
}

Status DataAgent::on_start() {
  owner_.bind();
  if (make_transport_) {
    transport_ = std::make_unique<LateTransport>([this] { return make_transport_(*relay_); });
    if (!options_.late_transport) CGX_RETURN_IF_ERROR(listen());
  }
  LinkPort* links = transport_ ? this : nullptr;  // one machine: neither
  CGX_ASSIGN_OR_RETURN(engine_, scheduler::Engine::create(
                                    options_.engine, {.transport = transport_.get(),
                                                      .links = links,
                                                      .events = &events_,
                                                      .plans = options_.record_plans,
                                                      .profiles = options_.keep_profiles,
                                                      .planner = planner_,
                                                      .recorder = recorder_ ? &*recorder_ : nullptr,
                                                      .clock = clock_.get(),
                                                      .site = options_.site}));
  return poller().add(mailbox_.event_fd(), EPOLLIN | EPOLLET, kMailboxTag);
}

Status DataAgent::listen() {
  if (listening_) return {};
  CGX_ASSIGN_OR_RETURN(endpoint_, transport_->local_endpoint());
  if (transport_->event_fd() >= 0) {
    CGX_RETURN_IF_ERROR(poller().add(transport_->event_fd(), EPOLLIN, kTransportTag));
  }
  listening_ = true;
  return {};
}

void DataAgent::on_stop() {
  mailbox_.close();
  snapshots_.close();
  transport_.reset();  // first: it ends a frame that is half way out with what the engine holds
  engine_.reset();
  device_sites_.clear();
  sessions_.clear();
  closed_.clear();
}

int DataAgent::do_work(uint64_t now_ns) {
  owner_.check();
  now_ns_ = now_ns;
  duty_.begin_round(now_ns);
  engine_->begin_round(now_ns);
  int work = take_messages();
  work += poll_sessions();
  work += engine_->do_work(now_ns);  // first: what a rank has just submitted is on its way sooner
  const bool left = std::exchange(leave_transport_, false);
  if (transport_ && !left) work += transport_->progress();
  work += publish_completions();
  work += make_snapshot();
  if (!closed_.empty()) release_closed();
  if (!device_sites_.empty()) close_device_sites();
  if (now_ns >= next_beat_ns_) beat();
  if (work > 0) duty_.worked();
  // Not twice in a row: a client can make every round one that found work.
  leave_transport_ = !left && work > 0 && !engine_->operations_open();
  return work;
}

bool DataAgent::messages_pause() const {
  return messages_.paused(now_ns_) && engine_->operations_open();
}

int DataAgent::take_messages() {
  if (messages_pause()) return 0;
  int work = 0;
  uint64_t took = 0;
  const auto take = [&](Message message) { took += handle(std::move(message)); };
  while (work < kMessagesPerRound && messages_.room(took) && mailbox_.drain(1, take) > 0) ++work;
  messages_.took(now_ns_ + took, took);
  return work;
}

uint64_t DataAgent::handle(Message message) {
  const uint64_t began = monotonic_ns();
  message.handle();
  const uint64_t took = monotonic_ns() - began;
  duty_.took(message.what, took);
  return took;
}

uint64_t DataAgent::next_deadline_ns() const {
  uint64_t deadline = engine_->next_deadline_ns();
  if (!sessions_.empty()) deadline = std::min(deadline, next_beat_ns_);
  if (snapshots_.wanted()) deadline = std::min(deadline, next_snapshot_ns_);
  if (messages_pause()) deadline = std::min(deadline, messages_.next_ns());
  const bool look_again = overflowing_ || !closed_.empty() ||
                          std::any_of(device_sites_.begin(), device_sites_.end(),
                                      [](auto& each) { return each.leaves; });
  return look_again ? std::min(deadline, now_ns_ + kLookAgainNs) : deadline;
}

Spin DataAgent::spin() const {
  if (options_.always_spin && sessions_.size() < options_.cores) return Spin::kAlways;
  return engine_->operations_open() ? Spin::kBriefly : Spin::kNo;
}

// The client publishes, fences, reads the flag; we raise the flag, fence, read the ring: one of the
// two sees the other.
bool DataAgent::prepare_sleep() {
  for (auto& each : sessions_) each->session.raise_sleeping();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool quiet = std::all_of(device_sites_.begin(), device_sites_.end(),
                                 [](auto& each) { return each.site->prepare_sleep(); }) &&
                     (mailbox_.empty() || messages_pause()) && !showing_ &&
                     !snapshot_due(now_ns_) &&
                     std::all_of(sessions_.begin(), sessions_.end(),
                                 [](const auto& each) { return each->session.ring_empty(); }) &&
                     (!transport_ || transport_->arm());
  if (quiet) {
    duty_.pause(monotonic_ns());
  } else {
    lower_sleeping();
  }
  return quiet;
}

void DataAgent::woken(std::span<const Poller::Ready> /*ready*/) {
  lower_sleeping();
}

void DataAgent::beat() {
  for (auto& each : sessions_) each->session.beat();
  next_beat_ns_ = now_ns_ + kBeatNs;
  warn_of_long_round();
  look_at_transport();
}

void DataAgent::look_at_transport() {
  if (!transport_ || unfit_) return;
  const Status fit = transport_->fit();
  if (fit.ok()) return;
  unfit_ = true;
  events_.event(scheduler::EventLevel::kError, fit.message());
  if (options_.on_unfit) options_.on_unfit(fit);
}

void DataAgent::warn_of_long_round() {
  const scheduler::RoundSnapshot round = duty_.take_warning();
  if (round.cpu_ns == 0) return;
  events_.event(scheduler::EventLevel::kWarning, "all jobs waited " +
                                                     std::to_string(round.cpu_ns / kMillisecond) +
                                                     " ms for " + std::string(round.what));
}

void DataAgent::lower_sleeping() {
  for (DeviceSite& each : device_sites_) each.site->woken();
  for (auto& each : sessions_) each->session.lower_sleeping();
}

// Sessions

void DataAgent::ask(SessionRequest request) {
  const char* const what = name_of(request);
  mailbox_.post_wait(
      {what, [this, request = std::move(request)]() mutable { handle(std::move(request)); }});
}

DataAgent::OpenedSession* DataAgent::find(SessionSerial serial) {
  for (auto& each : sessions_) {
    if (each->serial == serial) return each.get();
  }
  return nullptr;
}

void DataAgent::handle(SessionRequest request) {
  if (auto* message = std::get_if<OpenSession>(&request.body)) {
    return open(request.session, request.request, std::move(*message));
  }
  OpenedSession* session = find(request.session);
  if (session == nullptr) return;  // refused or evicted meanwhile
  const uint32_t number = request.request;
  if (auto* arena = std::get_if<AddMappedArena>(&request.body)) {
    add_arena(*session, number, std::move(*arena));
  } else if (const auto* dropped = std::get_if<wire::DropArena>(&request.body)) {
    drop_arena(*session, number, dropped->arena);
  } else if (const auto* meet = std::get_if<wire::Meet>(&request.body)) {
    engine_->meet(session->id, number, *meet);
  } else if (const auto* create = std::get_if<wire::CreateCommunicator>(&request.body)) {
    engine_->create_communicator(session->id, number, *create);
  } else if (auto* tensors = std::get_if<wire::RegisterTensors>(&request.body)) {
    engine_->register_tensors(session->id, number, std::move(*tensors));
  } else if (const auto* commit = std::get_if<wire::Commit>(&request.body)) {
    engine_->commit(session->id, number, *commit);
  } else if (const auto* redo = std::get_if<wire::RedoStep>(&request.body)) {
    engine_->redo_step(session->id, number, *redo);
  } else if (const auto* asked = std::get_if<wire::AskReport>(&request.body)) {
    Result<scheduler::CommunicatorSnapshot> shown = engine_->show(session->id, asked->comm);
    if (!shown.ok()) return answers_->answer({session->serial, number, to_reply(shown.status())});
    answers_->answer({session->serial, number,
                      Shown{*std::move(shown), asked->first, std::move(request.unserved)}});
  } else if (const auto* gone = std::get_if<wire::CloseCommunicator>(&request.body)) {
    engine_->close_communicator(session->id, number, *gone);
  } else if (const auto* bye = std::get_if<CloseSession>(&request.body)) {
    close(*session, bye->why);
  }
}

void DataAgent::open(SessionSerial serial, uint32_t request, OpenSession open) {
  auto reply = [this, serial](uint32_t number, const wire::Reply& message) {
    answers_->answer({serial, number, message});
  };
  auto session = std::make_unique<OpenedSession>(
      OpenedSession{serial,
                    open.options.holder,
                    {},
                    Session(std::move(open.channel), std::move(reply)),
                    {},
                    {},
                    {}});
  Result<scheduler::SessionId> id = engine_->open_session(open.options, session->session);
  Status status = id.status();
  if (status.ok()) {
    session->id = *id;
    // Never read: a client could make a read block, and every write is an edge.
    status = poller().add(session->session.doorbell_fd(), EPOLLIN | EPOLLET, kDoorbellTag);
    if (!status.ok()) engine_->close_session(*id, status);
  }
  if (!status.ok()) return answers_->answer({serial, request, Evict{status}});
  session->session.lower_sleeping();
  session->session.beat();
  session->session.tell_communicator_ms(communicator_ms());
  sessions_.push_back(std::move(session));
  answers_->answer({serial, request, Opened{}});
}

uint64_t DataAgent::communicator_ms() const {
  return options_.engine.timeouts.communicator_ns / kMillisecond;
}

void DataAgent::change(scheduler::Engine::Changes changes) {
  owner_.check();
  options_.engine.timeouts = changes.timeouts;
  for (auto& each : sessions_) each->session.tell_communicator_ms(communicator_ms());
  engine_->change(std::move(changes));
}

void DataAgent::add_arena(OpenedSession& session, uint32_t request, AddMappedArena arena) {
  if (arena.device == nullptr) {
    const Status status = engine_->add_arena(session.id, arena.arena, arena.region.bytes());
    if (!status.ok()) return refuse_arena(session, request, arena, status);
    session.arenas.push_back(std::move(arena.region));
    return answers_->answer({session.serial, request, wire::Reply{}});
  }
  const Result<scheduler::SiteId> site = site_of(arena.device->worker());
  Status status = site.status();
  if (status.ok()) {
    const scheduler::SiteMemory memory{
        .site = *site, .name = arena.device->number(), .bytes = arena.device->bytes()};
    status = engine_->add_arena(session.id, arena.arena, memory);
  }
  if (!status.ok()) return refuse_arena(session, request, arena, status);
  if (arena.device->way() == wire::ArenaWay::kVmm) {
    engine_->count(Counter::kdevice_arenas_vmm);
  } else {
    engine_->count(Counter::kdevice_arenas_ipc);
  }
  session.device_arenas.push_back(std::move(arena.device));
  answers_->answer({session.serial, request, wire::Reply{.value0 = arena.pattern}});
}

// As if it had not been mapped: its number and its share are free again.
void DataAgent::refuse_arena(const OpenedSession& session, uint32_t request,
                             const AddMappedArena& arena, const Status& why) {
  answers_->answer(
      {session.serial, request,
       ArenaMapped{session.holder, arena.arena, arena.region.bytes().size(), why, nullptr, 0}});
}

void DataAgent::drop_arena(OpenedSession& session, uint32_t request, uint32_t arena) {
  const Status status = engine_->drop_arena(session.id, arena);
  if (!status.ok()) return answers_->answer({session.serial, request, to_reply(status)});
  auto& all = session.device_arenas;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [arena](const auto& one) { return one->place() == arena; });
  answers_->answer(
      {session.serial, request, ArenaDropped{session.holder, arena, std::move(*found), {}}});
  all.erase(found);
}

// One that leaves is used again: a worker has one site, as its rings and staging memory do.
Result<scheduler::SiteId> DataAgent::site_of(const std::shared_ptr<gpu::Worker>& worker) {
  const auto known = std::find_if(device_sites_.begin(), device_sites_.end(),
                                  [&](const auto& each) { return each.worker == worker; });
  if (known != device_sites_.end() && engine_->keep_site(known->id)) {
    known->leaves = false;
    return known->id;
  }
  if (known != device_sites_.end()) {
    forget(*known);
    device_sites_.erase(known);
  }
  // Both are looked at when they wake us: the site finds out what it was.
  CGX_RETURN_IF_ERROR(poller().add(worker->notifier(), EPOLLIN | EPOLLET, kWorkerTag));
  CGX_RETURN_IF_ERROR(poller().add(worker->pidfd(), EPOLLIN | EPOLLET, kWorkerTag));
  DeviceSite made{.worker = worker};
  const auto staging = std::make_shared<gpu::Staging>(worker);
  made.id = engine_->add_site(staging, [&](auto slabs, const scheduler::ArenaTable& arenas) {
    auto site = std::make_unique<gpu::WorkerSite>(
        worker, staging, std::move(slabs), arenas,
        [this](uint64_t bytes) { engine_->count(Counter::kdevice_staged_bytes, bytes); });
    made.site = site.get();
    return site;
  });
  device_sites_.push_back(std::move(made));
  return device_sites_.back().id;
}

// Those of workers with which no session has an arena any more.
void DataAgent::close_device_sites() {
  const auto names = [](const auto& sessions, const gpu::Worker* worker) {
    return std::any_of(sessions.begin(), sessions.end(), [&](const auto& session) {
      return std::any_of(session->device_arenas.begin(), session->device_arenas.end(),
                         [&](const auto& arena) { return arena->worker().get() == worker; });
    });
  };
  std::erase_if(device_sites_, [&](DeviceSite& each) {
    const gpu::Worker* const worker = each.worker.get();
    each.leaves = each.leaves || (!names(sessions_, worker) && !names(closed_, worker));
    if (!each.leaves || !engine_->close_site(each.id)) return false;
    forget(each);
    return true;
  });
}

void DataAgent::forget(const DeviceSite& site) {
  poller().remove(site.worker->notifier());
  poller().remove(site.worker->pidfd());
}

void DataAgent::close(OpenedSession& session, const Status& why) {
  poller().remove(session.session.doorbell_fd());
  session.session.mute();
  for (const auto& arena : session.device_arenas) arena->worker()->free_words(arena->number());
  engine_->close_session(session.id, why);
  const auto it = std::find_if(sessions_.begin(), sessions_.end(),
                               [&](const auto& each) { return each.get() == &session; });
  closed_.push_back(std::move(*it));
  sessions_.erase(it);
}

void DataAgent::evict(OpenedSession& session, const Status& why) {
  answers_->answer({session.serial, 0, Evict{why}});
  close(session, why);
}

void DataAgent::release_closed() {
  std::erase_if(closed_, [this](auto& each) {
    if (engine_->session_in_use(each->id)) return false;
    answers_->answer({each->serial, 0,
                      Released{each->holder, each->session.take_channel(), std::move(each->arenas),
                               std::move(each->device_arenas)}});
    return true;
  });
}

int DataAgent::poll_sessions() {
  int work = 0;
  for (auto& each : sessions_) {
    each->fault = each->session.poll(
        [&](const cgx_submit_record& record) { return engine_->submit(each->id, record); }, &work);
  }
  for (size_t i = 0; i < sessions_.size();) {
    OpenedSession& session = *sessions_[i];
    if (session.fault.ok()) {
      ++i;
      continue;
    }
    engine_->count(Counter::kring_violations);
    evict(session, session.fault);
  }
  return work;
}

int DataAgent::publish_completions() {
  int work = 0;
  overflowing_ = false;
  for (size_t i = 0; i < sessions_.size();) {
    OpenedSession& session = *sessions_[i];
    const Status status = session.session.publish(&work);
    overflowing_ = overflowing_ || session.session.overflowing();
    if (status.ok()) {
      ++i;
    } else {
      evict(session, status);
    }
  }
  return work;
}

// Links

void DataAgent::open_link(scheduler::LinkId link, const scheduler::LinkRequest& request) {
  const LinkSerial serial = next_link_++;
  links_[link] = {.serial = serial, .peer = {}};
  const Status wanted = want_link(serial, request);
  if (wanted.ok()) return;
  // Not from inside the engine's call.
  (void)mailbox_.post({kLinkMessage, [this, serial, wanted] { refuse(serial, wanted); }});
}

Status DataAgent::want_link(LinkSerial serial, const scheduler::LinkRequest& request) {
  if (links_out_ == nullptr || !transport_) {
    return {StatusCode::kUNAVAILABLE,
            "this daemon serves one machine only: mesh.listen is not configured"};
  }
  CGX_RETURN_IF_ERROR(listen());
  if (links_out_->want({serial, request, endpoint_})) return {};
  return resource_exhausted("too many links are being made at once");
}

void DataAgent::close_link(scheduler::LinkId link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const Link closed = found->second;
  links_.erase(found);
  if (links_out_ != nullptr) links_out_->unwant(closed.serial);
  if (!closed.connected || closed.up) return;  // the engine closes what is up
  connecting_.remove(closed.peer);
  transport_->close(closed.peer);
}

void DataAgent::connect_link(LinkSerial serial, transport::ConnectOptions options) {
  mailbox_.post_wait({kLinkMessage, [this, serial, options = std::move(options)] {
                        connect_peer(serial, options);
                      }});
}

void DataAgent::link_made(LinkSerial serial) {
  mailbox_.post_wait({kLinkMessage, [this, serial] { bring_up(serial); }});
}

void DataAgent::link_refused(LinkSerial serial, Status why) {
  mailbox_.post_wait({kLinkMessage, [this, serial, why = std::move(why)] { refuse(serial, why); }});
}

void DataAgent::take_plan(UniqueFunction<void()> answer) {
  mailbox_.post_wait({"a new plan", std::move(answer)});
}

DataAgent::Links::iterator DataAgent::find_link(LinkSerial serial) {
  return std::find_if(links_.begin(), links_.end(),
                      [serial](const auto& each) { return each.second.serial == serial; });
}

void DataAgent::connect_peer(LinkSerial serial, const transport::ConnectOptions& options) {
  const auto found = find_link(serial);
  if (found == links_.end()) return;  // closed meanwhile; the mesh knows
  Result<transport::PeerId> peer = transport_->connect(options);
  if (peer.ok()) {
    found->second.peer = *peer;
    found->second.connected = true;
    connecting_.add(*peer, serial);
  } else {
    look_at_transport();
  }
  links_out_->connected(serial, peer.status());
}

void DataAgent::bring_up(LinkSerial serial) {
  const auto found = find_link(serial);
  if (found == links_.end() || !found->second.connected || found->second.up) return;
  found->second.up = true;
  connecting_.remove(found->second.peer);
  engine_->link_up(found->first, found->second.peer);
}

void DataAgent::refuse(LinkSerial serial, const Status& why) {
  const auto found = find_link(serial);
  if (found == links_.end() || found->second.up) return;
  const scheduler::LinkId id = found->first;
  close_link(id);
  engine_->link_down(id, why);
}

// Operators

bool DataAgent::run(EngineTask task) {
  return mailbox_.post({"an operator's request", [this, task = std::move(task)]() mutable {
                          flush_counters();
                          task(*engine_);
                        }});
}

void DataAgent::add_gpus(scheduler::Snapshot& shown) const {
  for (const DeviceSite& each : device_sites_) {
    scheduler::GpuSnapshot gpu = each.worker->shown();
    for (const auto& session : sessions_) {
      for (const auto& arena : session->device_arenas) {
        if (arena->worker() != each.worker) continue;
        gpu.arenas_vmm += arena->way() == wire::ArenaWay::kVmm ? 1 : 0;
        gpu.arenas_ipc += arena->way() == wire::ArenaWay::kIpc ? 1 : 0;
      }
    }
    shown.gpus.push_back(std::move(gpu));
  }
}

}  // namespace cgx::daemon
