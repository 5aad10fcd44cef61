#include "transport/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cgx::transport {
namespace {

constexpr int kEventsPerRound = 64;
constexpr int kFinalReadsMax = 512;  // of a connection when the transport ends: 8 MiB

std::vector<std::byte> encode_addresses(const std::vector<std::string>& addresses) {
  std::vector<std::byte> bytes = {static_cast<std::byte>(addresses.size())};
  for (const std::string& address : addresses) {
    bytes.push_back(static_cast<std::byte>(address.size()));
    const auto text = std::as_bytes(std::span(address));
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
  return bytes;
}

Status check(const TcpOptions& options) {
  if (options.hosts.empty() || options.hosts.size() > kTcpHostsMax) {
    return invalid_argument("hosts: " + std::to_string(options.hosts.size()) +
                            " addresses to listen on, 1 to 8 are possible");
  }
  if (options.frame_bytes < (4u << 10) || options.frame_bytes > (16u << 20)) {
    return invalid_argument("frame_bytes: " + std::to_string(options.frame_bytes) +
                            " is outside 4096..16777216");
  }
  if (options.port_first > options.port_last || (options.port_first == 0 && options.port_last)) {
    return invalid_argument("ports: " + std::to_string(options.port_first) + "-" +
                            std::to_string(options.port_last) + " is no range");
  }
  return {};
}

}  // namespace

TcpTransport::TcpTransport(TcpOptions options, Events& events)
    : options_(std::move(options)), events_(events) {}

Status TcpTransport::open() {
  CGX_RETURN_IF_ERROR(check(options_));
  epoll_ = Socket(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Socket(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_ || !timer_)
    return {StatusCode::kUNAVAILABLE, std::string("epoll: ") + std::strerror(errno)};
  CGX_RETURN_IF_ERROR(watch(timer_.get(), timer_watch_));
  std::vector<std::string> addresses;
  for (const std::string& host : options_.hosts) {
    auto listener = std::make_unique<Listener>();
    listener->kind = TcpWatched::Kind::kListener;
    CGX_ASSIGN_OR_RETURN(listener->socket, listen_at(host, options_.port_first, options_.port_last,
                                                     {options_.congestion, options_.stalled_ms}));
    if (!options_.admitted.empty()) (void)admit_only(listener->socket.get(), options_.admitted);
    CGX_RETURN_IF_ERROR(watch(listener->socket.get(), *listener));
    addresses.push_back(own_address(listener->socket.get()).text());
    listeners_.push_back(std::move(listener));
  }
  endpoint_ = {encode_addresses(addresses),
               "tcp/1;seal=" + std::string(tcp_seal_name(options_.seal)) +
                   ";frame=" + std::to_string(options_.frame_bytes)};
  return {};
}

// What was said goes out as far as the sockets take it; the system sees to the rest.
TcpTransport::~TcpTransport() {
  CGX_ASSERT(!in_progress_);
  std::vector<PeerId> peers;
  links_.for_each([&](PeerId peer, TcpLink&) { peers.push_back(peer); });
  for (const PeerId peer : peers) close(peer);
  const Connections saying_goodbye = std::move(parting_);
  for (const auto& connection : saying_goodbye) {
    write(*connection);
    for (int reads = 0; reads < kFinalReadsMax && discard(*connection) > 0;) ++reads;
  }
}

Caps TcpTransport::caps() const {
  return {.header_bytes_max = kTcpHeaderBytesMax,
          .frame_bytes_max = kFrameBytesMax,
          .frame_bytes_best = options_.frame_bytes,
          .network = true,
          .checks_payloads = true};
}

// Listeners say again what has not been taken in, the others only once.
Status TcpTransport::watch(int descriptor, TcpWatched& watched) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &watched}};
  if (watched.kind != TcpWatched::Kind::kListener) event.events |= EPOLLET;
  if (watched.kind == TcpWatched::Kind::kConnection) event.events |= EPOLLOUT | EPOLLRDHUP;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return {StatusCode::kUNAVAILABLE, std::string("epoll: ") + std::strerror(errno)};
}

Status TcpTransport::send(PeerId to, const Frame& frame, SendToken token) {
  TcpLink* link = links_.find(to);
  if (!link) return {StatusCode::kNOT_FOUND, "send to a peer that is not connected"};
  if (!link->down.ok()) return link->down;
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));

  TcpSending& sending = take_sending();
  sending.token = token;
  sending.number = ++link->sent;
  sending.payload = frame.payload;
  sending.head = {.payload_bytes = static_cast<uint32_t>(frame.payload.size()),
                  .header_bytes = static_cast<uint16_t>(frame.header.size()),
                  .number = sending.number};
  if (!frame.header.empty()) {
    std::memcpy(sending.header, frame.header.data(), frame.header.size());
  }
  const bool alone = link->unsent == nullptr;
  (link->first ? link->last->next : link->first) = &sending;
  if (alone) link->unsent = &sending;
  link->last = &sending;
  start_ticking();
  if (alone && link->connection && link->connection->writable) write(*link->connection);
  return {};
}

TcpSending& TcpTransport::take_sending() {
  if (free_sendings_ == nullptr) {
    sendings_.push_back(std::make_unique<TcpSending>());
    return *sendings_.back();
  }
  TcpSending& sending = *std::exchange(free_sendings_, free_sendings_->next);
  sending.next = nullptr;
  return sending;
}

void TcpTransport::free_sending(TcpSending& sending) {
  sending.next = std::exchange(free_sendings_, &sending);
}

int TcpTransport::progress() {
  CGX_ASSERT(!in_progress_);
  in_progress_ = true;
  int count = take_events();
  count += work();
  count += completions_.report(events_);
  if (!failed_.empty()) count += report_failures();
  dead_.clear();
  if (!leaving_.empty()) forget_those_that_left();
  in_progress_ = false;
  return count;
}

int TcpTransport::take_events() {
  epoll_event events[kEventsPerRound];
  const int ready = ::epoll_wait(epoll_.get(), events, kEventsPerRound, 0);
  for (int i = 0; i < ready; ++i) {
    auto& watched = *static_cast<TcpWatched*>(events[i].data.ptr);
    switch (watched.kind) {
      case TcpWatched::Kind::kListener:
        accept_some(static_cast<Listener&>(watched));
        break;
      case TcpWatched::Kind::kTimer:
        on_timer();
        break;
      case TcpWatched::Kind::kConnection:
        take_connection_event(static_cast<TcpConnection&>(watched), events[i].events);
        break;
    }
  }
  return 0;
}

void TcpTransport::take_connection_event(TcpConnection& connection, uint32_t events) {
  if (connection.stage == TcpConnection::Stage::kDead) return;
  if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) connection.ending = true;
  if (events & EPOLLOUT) connection.writable = true;
  if ((events & EPOLLIN) || connection.ending) connection.readable = true;
  activate(connection);
}

void TcpTransport::activate(TcpConnection& connection) {
  if (std::exchange(connection.active, true)) return;
  active_.push_back(&connection);
}

// One turn for each connection: none waits for another's flood.
int TcpTransport::work() {
  int count = 0;
  std::swap(active_, working_);
  for (TcpConnection* connection : working_) {
    connection->active = false;
    if (connection->stage == TcpConnection::Stage::kConnecting) connected(*connection);
    if (connection->readable) count += read(*connection);
    if (connection->writable) count += write(*connection);
    if (connection->stage != TcpConnection::Stage::kDead && connection->readable) {
      activate(*connection);
    }
  }
  working_.clear();
  return count;
}

int TcpTransport::report_failures() {
  int count = 0;
  for (const PeerId peer : std::vector<PeerId>(failed_)) {
    const TcpLink* link = links_.find(peer);
    if (!link || completions_.has(peer)) continue;
    std::erase(failed_, peer);
    events_.on_peer_down(peer, Status(link->down));
    ++count;
  }
  return count;
}

bool TcpTransport::arm() {
  return completions_.empty() && failed_.empty() && active_.empty();
}

}  // namespace cgx::transport
