#include "daemon/ipc/ipc_agent.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

#include "daemon/base/clock.h"
#include "daemon/base/holder.h"
#include "daemon/base/open_files.h"
#include "daemon/data/session_report.h"
#include "daemon/ipc/ipc_connection.h"
#include "scheduler/exchange/place.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kInboxTag = 1;
constexpr size_t kInboxCapacity = 64 * 1024;
constexpr int kAnswersPerRound = 256;
constexpr int kAcceptsPerRound = 64;
constexpr uint64_t kReadAgainNs = kMillisecond;
constexpr uint64_t kLookAtWorkersNs = 1000 * kMillisecond;

UniqueFd open_spare() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

Result<std::unique_ptr<IpcAgent>> IpcAgent::create(const IpcOptions& options, const Ports& ports) {
  ListenSocketOptions socket = options.socket;
  socket.type = SOCK_SEQPACKET;
  CGX_ASSIGN_OR_RETURN(ListenSocket listener, ListenSocket::open(socket));
  return std::unique_ptr<IpcAgent>(new IpcAgent(options, ports, std::move(listener)));
}

IpcAgent::IpcAgent(const IpcOptions& options, const Ports& ports, ListenSocket listener)
    : options_(options),
      ports_(ports),
      refusals_(ports.events),
      listener_(std::move(listener)),
      inbox_(std::make_shared<Mailbox<SessionAnswer>>(kInboxCapacity)),
      workers_(std::make_shared<gpu::Workers>(options.gpu_worker, options.gpu_workers_max)),
      spare_fd_(open_spare()) {}

IpcAgent::~IpcAgent() = default;

Status IpcAgent::on_start() {
  owner_.bind();
  CGX_RETURN_IF_ERROR(poller().add(inbox_->event_fd(), EPOLLIN | EPOLLET, kInboxTag));
  CGX_RETURN_IF_ERROR(poller().add(listener_.fd(), EPOLLIN, kListenerTag));
  listening_ = true;
  return {};
}

// The daemon ends: clients see the end of their connection and report DAEMON_LOST.
void IpcAgent::on_stop() {
  listener_.close();
  const MutexLock lock(last_words_mutex_);
  while (!connections_.empty()) {
    Connection& connection = *connections_.begin()->second;
    if (!last_words_.empty()) connection.say({StatusCode::kUNAVAILABLE, last_words_});
    drop(connection);
  }
  inbox_->close();
}

int IpcAgent::do_work(uint64_t now_ns) {
  owner_.check();
  now_ns_ = now_ns;
  if (listening_ && !accepting_.load()) {
    poller().remove(listener_.fd());
    listener_.close();
    listening_ = false;
  }
  expire(now_ns);
  if (paused_) go_on_accepting();
  if (reading_paused_) go_on_reading();
  show_pending();
  show_workers();
  return inbox_->drain(kAnswersPerRound,
                       [this](SessionAnswer answer) { handle(std::move(answer)); });
}

uint64_t IpcAgent::next_deadline_ns() const {
  uint64_t deadline = paused_ ? now_ns_ + Admission::kLookAgainNs : kNever;
  if (reading_paused_) deadline = std::min(deadline, now_ns_ + kReadAgainNs);
  // Nobody says when a worker has ended.
  if (!shown_workers_.holders().empty()) deadline = std::min(deadline, now_ns_ + kLookAtWorkersNs);
  for (const auto& [serial, connection] : connections_) {
    deadline = std::min(deadline, connection->deadline_ns());
  }
  return deadline;
}

void IpcAgent::woken(std::span<const Poller::Ready> ready) {
  now_ns_ = monotonic_ns();
  for (const Poller::Ready& each : ready) on_ready(each.tag);
}

void IpcAgent::on_ready(uint64_t tag) {
  if (tag == kListenerTag) return accept_all();
  const auto found = connections_.find(tag / 2);
  if (tag == kInboxTag || found == connections_.end()) return;
  Connection& connection = *found->second;
  const bool died = (tag & 1) != 0;
  Status status = connection.read_packets(died);  // also when it died: it may have said goodbye
  if (status.ok() && died && !connection.said_goodbye()) status = connection.death();
  if (status.ok() && !connection.said_goodbye()) return;
  const bool greeting = connection.state() == Connection::State::kGreeting;
  if (greeting && !status.ok()) {
    refuse(connection.socket(), status);
  } else {
    connection.hang_up(status);
  }
  drop(connection);
}

void IpcAgent::accept_all() {
  for (int i = 0; i < kAcceptsPerRound && listening_; ++i) {
    const Admission::Answer answer = admission_.ask(listener_.fd(), now_ns_);
    if (answer == Admission::Answer::kWait) return pause_accepting();
    UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket && answer == Admission::Answer::kTurnAway) {
      const std::string holder = holder_behind(socket.get());
      turn_away(std::move(socket), holder, no_descriptor_left());
      continue;
    }
    if (socket) {
      admit(std::move(socket), now_ns_);
      continue;
    }
    if (errno != EMFILE && errno != ENFILE) return;
    spare_fd_.reset();
    socket = UniqueFd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) {
      const std::string holder = holder_behind(socket.get());
      turn_away(std::move(socket), holder, no_descriptor_left());
    }
    spare_fd_ = open_spare();
  }
}

Status IpcAgent::no_descriptor_left() {
  return resource_exhausted("the daemon has no descriptor left (ulimit -n)");
}

void IpcAgent::pause_accepting() {
  paused_ = true;
  poller().change(listener_.fd(), 0, kListenerTag);
}

void IpcAgent::go_on_accepting() {
  paused_ = false;
  if (!listening_) return;
  poller().change(listener_.fd(), EPOLLIN, kListenerTag);
  accept_all();
}

// Not even the end of its connection wakes this thread meanwhile; its process' end does.
void IpcAgent::pause_reading(const Connection& connection) {
  if (!connection.paused()) poller().remove(connection.socket());
  reading_paused_ = true;
}

void IpcAgent::go_on_reading() {
  reading_paused_ = false;
  for (const auto& [serial, connection] : connections_) {
    if (connection->paused()) connection->read_again();
    reading_paused_ |= connection->paused();
  }
}

Unserved::Count IpcAgent::unserved_of(const std::string& holder) const {
  for (const auto& [serial, connection] : connections_) {
    if (connection->holder() == holder) return connection->unserved_of_user();
  }
  return std::make_shared<std::atomic<uint32_t>>(0);
}

void IpcAgent::admit(UniqueFd socket, uint64_t now_ns) {
  Result<PeerProcess> peer = peer_process(socket.get());
  const std::string holder =
      peer.ok() ? holder_of(peer->uid, peer->pid) : holder_behind(socket.get());
  const Status admitted = peer.ok() ? may_admit(holder) : peer.status();
  if (!admitted.ok()) return turn_away(std::move(socket), holder, admitted);
  const SessionSerial serial = next_serial_++;
  auto connection =
      std::make_unique<Connection>(*this, serial, std::move(socket), std::move(peer).value(),
                                   holder, unserved_of(holder), now_ns + options_.handshake_ns);
  if (Status status = connection->watch(); !status.ok()) {
    refuse(connection->socket(), status);
    return users_.end(holder, connection->take_socket());
  }
  connections_.emplace(serial, std::move(connection));
  connections_open_ = static_cast<uint32_t>(connections_.size());
  on_ready(serial * 2);  // who has spoken already is none of the silent, whose number is limited
}

bool IpcAgent::too_much_waits(const std::string& holder) const {
  return users_.waiting(holder) >= options_.user_tasks_max;
}

Status IpcAgent::may_admit(const std::string& holder) const {
  if (too_much_waits(holder)) {
    return resource_exhausted(holder + " has sent " + std::to_string(options_.user_tasks_max) +
                              " descriptors or arenas that are still being closed or mapped");
  }
  return pending().check(holder);
}

scheduler::Share IpcAgent::pending() const {
  scheduler::Share share("sessions introducing themselves", options_.pending_max);
  for (const auto& [serial, connection] : connections_) {
    if (connection->state() == Connection::State::kGreeting) share.add(connection->holder());
  }
  return share;
}

void IpcAgent::show_pending() {
  const scheduler::Share share = pending();
  if (share.holders() != shown_pending_.holders())
    ports_.counters.shares().show(shown_pending_ = share);
}

void IpcAgent::show_workers() {
  const scheduler::Share share = workers_->share();
  if (share.holders() != shown_workers_.holders())
    ports_.counters.shares().show(shown_workers_ = share);
}

Status IpcAgent::may_open(const std::string& holder) const {
  scheduler::Share sessions("limits.sessions", options_.sessions_max);
  for (const auto& [serial, connection] : connections_) {
    if (connection->state() != Connection::State::kGreeting) sessions.add(connection->holder());
  }
  return sessions.check(holder);
}

Status IpcAgent::may_share(const std::string& holder, uint64_t bytes) const {
  scheduler::Share arenas("arenas", scheduler::ArenaTable::kArenasMax);
  scheduler::Share memory("limits.shared_bytes", options_.shared_bytes_max);
  for (const auto& [serial, connection] : connections_) {
    arenas.add(connection->holder(), connection->arenas());
    memory.add(connection->holder(), connection->arena_bytes());
  }
  CGX_RETURN_IF_ERROR(arenas.check(holder));
  return memory.check(holder, bytes);
}

void IpcAgent::refuse(int socket, const Status& why) {
  using scheduler::Counter;
  ports_.counters.add(Counter::ksessions_refused);
  const bool junk =
      why.code() == StatusCode::kPROTOCOL_ERROR || why.code() == StatusCode::kTIMED_OUT;
  if (junk) ports_.counters.add(Counter::kcontrol_junk);
  const wire::Reply reply{why.code(), why.message(), 0, 0};
  if (socket >= 0) (void)send_packet(socket, wire::encode_packet(reply, 0));  // it may not read
  refusals_.warn(now_ns_, "refused a client's connection: " + why.to_string());
}

void IpcAgent::turn_away(UniqueFd socket, const std::string& holder, const Status& why) {
  refuse(socket.get(), why);
  users_.end(holder, std::move(socket));
}

void IpcAgent::expire(uint64_t now_ns) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;
    if (connection.deadline_ns() > now_ns) continue;
    const Status why(StatusCode::kTIMED_OUT,
                     connection.description() + " did not introduce itself within " +
                         std::to_string(options_.handshake_ns / kMillisecond) + " ms");
    refuse(connection.socket(), why);
    drop(connection);
  }
}

void IpcAgent::drop(Connection& connection) {
  if (connection.state() == Connection::State::kOpen) --sessions_open_;
  poller().remove(connection.socket());
  if (connection.pidfd() >= 0) poller().remove(connection.pidfd());
  users_.end(connection.holder(), connection.take_socket());
  connections_.erase(connection.serial());
  connections_open_ = static_cast<uint32_t>(connections_.size());
}

void IpcAgent::answer(SessionAnswer answer) {
  // Answers are bounded by requests, so a full inbox means this thread is stuck; the memory of a
  // Released session is then unmapped here instead.
  (void)inbox_->post(std::move(answer));
}

void IpcAgent::handle(SessionAnswer answer) {
  if (auto* released = std::get_if<Released>(&answer.body)) {
    return users_.run(released->holder, [memory = std::move(*released)] {});
  }
  const auto found = connections_.find(answer.session);
  auto* const mapped = std::get_if<ArenaMapped>(&answer.body);
  auto* const dropped = std::get_if<ArenaDropped>(&answer.body);
  if (found == connections_.end()) {  // an answer to somebody who has gone
    if (mapped != nullptr) users_.run(mapped->holder, [memory = std::move(*mapped)] {});
    if (dropped != nullptr) users_.run(dropped->holder, [memory = std::move(*dropped)] {});
    return;
  }
  Connection& connection = *found->second;
  Status status;
  if (const auto* opened = std::get_if<Opened>(&answer.body)) {
    ++sessions_open_;
    ++sessions_ever_;
    status = connection.on_answer(answer.request, *opened);
  } else if (const auto* reply = std::get_if<wire::Reply>(&answer.body)) {
    status = connection.on_answer(answer.request, *reply);
  } else if (auto* shown = std::get_if<Shown>(&answer.body)) {
    make_page(connection, answer.request, std::move(*shown));
  } else if (const auto* evict = std::get_if<Evict>(&answer.body)) {
    status = evict->why;
  } else if (mapped != nullptr) {
    status = connection.on_mapped(answer.request, std::move(*mapped));
  } else if (dropped != nullptr) {
    status = connection.on_dropped(answer.request, std::move(*dropped));
  }
  if (status.ok()) return;
  if (connection.state() == Connection::State::kOpening) {
    ports_.counters.add(scheduler::Counter::ksessions_refused);
  }
  connection.hang_up(status);
  drop(connection);
}

// Of 65,000 tensors one takes tens of milliseconds.
void IpcAgent::make_page(const Connection& connection, uint32_t request, Shown shown) {
  users_.run(connection.holder(), [inbox = inbox_, serial = connection.serial(), request,
                                   shown = std::move(shown)]() mutable {
    (void)inbox->post({serial, request, report_page(shown.communicator, shown.first)});
  });
}

void IpcAgent::stop_accepting(const std::string& why) {
  if (!why.empty()) {
    const MutexLock lock(last_words_mutex_);
    last_words_ = why;
  }
  accepting_.store(false);
  inbox_->wake();
}

}  // namespace cgx::daemon
