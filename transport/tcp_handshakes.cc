// Connections that have not proved anything yet, and time.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "transport/tcp_transport.h"

namespace cgx::transport {
namespace {

using Stage = TcpConnection::Stage;

constexpr int kAcceptsPerRound = 4;     // frames of all jobs wait meanwhile
constexpr uint64_t kTicksPerRound = 2;  // whoever stood still for longer has watched nobody
// Beside what an answer takes (TcpLink::answer_ms).
constexpr uint32_t kSilentMs = 500;  // or a trickle; a connection that carries nothing is replaced
constexpr uint32_t kGapTicks = 4;    // without bytes: look whether segments come
constexpr uint32_t kQueueMsMin = 500;  // less is within what a link may be silent
constexpr uint32_t kQueueMsMax = 20'000;
constexpr uint32_t kGreetingMs = 900;  // of a peer that has been reached before
constexpr uint32_t kAnswerMs = 75;     // and four round trips
// Said so often in a row, it is no bit that changed on the way, nor a firewall that is loaded anew
// or an address that moves. 25 to 50 ms lie between two.
constexpr uint32_t kDisownedMax = 4, kRefusedMax = 4;
constexpr size_t kHalfOpenMax = 1024;  // of all addresses together
constexpr size_t kHalfOpenFew = 4;     // likewise, once few descriptors are left

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

template <typename Message>
void read_into(Message& message, const std::byte* bytes) {
  std::memcpy(static_cast<void*>(&message), bytes, sizeof message);
}

}  // namespace

// A listener that has more to give says so in the next round.
void TcpTransport::accept_some(Listener& listener) {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    Socket socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = socket ? 0 : errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    listener.error = error == EAGAIN ? 0 : error;
    if (listener.error != 0) return pause(listener);
    if (!socket) return;
    admit(std::move(socket));
  }
}

// No descriptor, no memory: that may pass until the next tick.
void TcpTransport::pause(Listener& listener) {
  listener.paused = true;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.socket.get(), nullptr);
  start_ticking();
}

void TcpTransport::admit(Socket socket) {
  if (!options_.admitted.empty()) admit_all(socket.get());  // it costs time for each packet
  std::string host = peer_address(socket.get()).host();
  if (options_.admits && !options_.admits(host)) {
    totals_.connections_refused += 1;
    return;
  }
  make_room(host, socket.get());
  auto connection =
      std::make_unique<TcpConnection>(std::move(socket), Stage::kAccepted, options_.frame_bytes);
  connection->host = std::move(host);
  connection->ticks_left = ticks(options_.handshake_ms);
  if (!watch(connection->socket.get(), *connection).ok()) return;
  half_open_.push_back(std::move(connection));
  start_ticking();
}

void TcpTransport::make_room(const std::string& host, int descriptor) {
  const bool few = options_.few_left && options_.few_left(descriptor);
  const auto count = std::count_if(half_open_.begin(), half_open_.end(),
                                   [&](const auto& each) { return each->host == host; });
  if (count >= static_cast<ptrdiff_t>(options_.half_open_max)) refuse(least_likely(host));
  while (half_open_.size() >= (few ? kHalfOpenFew : kHalfOpenMax)) {
    refuse(least_likely(host_with_most()));
  }
}

// So that one host does not push out others. REQUIRES: some connection is half open.
std::string TcpTransport::host_with_most() const {
  std::map<std::string, size_t> count;
  for (const auto& each : half_open_) ++count[each->host];
  const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
  return std::max_element(count.begin(), count.end(), fewer)->first;
}

// Of that host's: the oldest that has not named a link, for tags are secret; then the oldest, for
// who means it has proved itself in a round trip. REQUIRES: there is one.
TcpConnection& TcpTransport::least_likely(const std::string& host) const {
  const auto of_host = [&](const auto& each) { return each->host == host; };
  const auto nameless = std::find_if(half_open_.begin(), half_open_.end(), [&](const auto& each) {
    return each->stage == Stage::kAccepted && of_host(each);
  });
  if (nameless != half_open_.end()) return **nameless;
  return **std::find_if(half_open_.begin(), half_open_.end(), of_host);
}

void TcpTransport::refuse(TcpConnection& connection) {
  totals_.connections_refused += 1;
  bury_from(half_open_, connection);
}

void TcpTransport::connected(TcpConnection& connection) {
  if (const int error = pending_error(connection.socket.get())) {
    TcpLink& link = *connection.link;
    if (error != ECONNREFUSED || !leads_home(link) || link.connection) {
      return fail(connection, {StatusCode::kPEER_LOST, std::strerror(error)});
    }
    if (++link.refused == kRefusedMax) return lose(link, "its process is gone");
    return fail(connection, {StatusCode::kNOT_FOUND, std::strerror(error)});
  }
  if (!connection.writable) return;
  connection.stage = Stage::kGreeting;
  TcpLink& link = *connection.link;
  if (leads_home(link)) link.refused = 0;
  const uint32_t more_ms = link.was_up ? kGreetingMs : 0;
  connection.ticks_left = ticks(std::min(more_ms + dial_ms(link), options_.handshake_ms));
  connection.hello = {
      .tag = link.outbound_tag, .received = link.received, .nonce = new_tcp_nonce()};
  tell(connection, bytes_of(connection.hello));
}

size_t TcpTransport::expected(const TcpConnection& connection) const {
  switch (connection.stage) {
    case Stage::kAccepted:
      return sizeof(TcpHello);
    case Stage::kGreeting:
      return sizeof(TcpWelcome);
    default:
      return sizeof(TcpProof);
  }
}

void TcpTransport::take_handshake(TcpConnection& connection) {
  connection.heard_bytes = 0;
  switch (connection.stage) {
    case Stage::kAccepted:
      return on_hello(connection);
    case Stage::kGreeting:
      return on_welcome(connection);
    default:
      return on_proof(connection);
  }
}

void TcpTransport::on_hello(TcpConnection& connection) {
  TcpHello& hello = connection.hello;
  read_into(hello, connection.heard);
  if (hello.magic != kTcpMagic) return refuse(connection);
  const TcpLink* link = find_tag(hello.tag);
  if (!link) {
    totals_.frames_dropped += 1;  // those its sender has for us
    const TcpWelcome unknown;
    (void)::send(connection.socket.get(), &unknown, sizeof unknown, MSG_NOSIGNAL | MSG_DONTWAIT);
    return refuse(connection);
  }
  if (link->dials) return bury_from(half_open_, connection);  // that we live is all it asks
  connection.welcome = {.received = link->received, .nonce = new_tcp_nonce()};
  connection.welcome.mac = prove_tcp_listener(link->secret, hello, connection.welcome);
  connection.stage = Stage::kWelcoming;
  tell(connection, bytes_of(connection.welcome));
}

void TcpTransport::on_welcome(TcpConnection& connection) {
  TcpLink& link = *connection.link;
  read_into(connection.welcome, connection.heard);
  if (connection.welcome.mac == TcpMac{}) {
    // Another of its addresses may be somebody else's, where it is dialed from: loopback, docker0.
    if (leads_home(link) && ++link.disowned == kDisownedMax) {
      return lose(link, "the peer knows the link no more");
    }
    return fail(connection, {StatusCode::kNOT_FOUND, "the peer does not know the link"});
  }
  link.disowned = 0;
  const TcpMac wanted = prove_tcp_listener(link.secret, connection.hello, connection.welcome);
  if (!link.dials || !equal_macs(wanted, connection.welcome.mac)) {
    totals_.connections_refused += 1;
    return fail(connection, {StatusCode::kAUTH_FAILED, "it does not know the link's secret"});
  }
  const TcpProof proof{prove_tcp_dialer(link.secret, connection.hello, connection.welcome)};
  tell(connection, bytes_of(proof));
  if (link.connection) bury(std::move(link.connection));
  link.connection = std::move(link.dialing);
  open_records(connection, connection.welcome.received);
}

void TcpTransport::on_proof(TcpConnection& connection) {
  TcpProof proof;
  read_into(proof, connection.heard);
  TcpLink* link = find_tag(connection.hello.tag);
  const bool proved =
      link &&
      equal_macs(prove_tcp_dialer(link->secret, connection.hello, connection.welcome), proof.mac);
  if (!proved) return refuse(connection);
  connection.link = link;
  if (link->connection) bury(std::move(link->connection));
  if (link->dialing) bury(std::move(link->dialing));
  bury_earlier_tries(connection);
  link->connection = take_half_open(connection);
  open_records(connection, connection.hello.received);
}

// The dialer has given them up for this one. What it said on them may still be on its way, and
// would take the link over.
void TcpTransport::bury_earlier_tries(const TcpConnection& connection) {
  for (size_t i = 0; half_open_[i].get() != &connection;) {
    const bool earlier = half_open_[i]->stage == Stage::kWelcoming &&
                         half_open_[i]->hello.tag == connection.hello.tag;
    if (earlier) {
      bury_from(half_open_, *half_open_[i]);
    } else {
      ++i;
    }
  }
}

std::unique_ptr<TcpConnection> TcpTransport::take_half_open(const TcpConnection& connection) {
  const auto found = std::find_if(half_open_.begin(), half_open_.end(),
                                  [&](const auto& each) { return each.get() == &connection; });
  std::unique_ptr<TcpConnection> taken = std::move(*found);
  half_open_.erase(found);
  return taken;
}

// What the peer has not taken in on earlier connections goes again.
void TcpTransport::open_records(TcpConnection& connection, uint64_t peer_received) {
  TcpLink& link = *connection.link;
  const SealKeys keys = make_seal_keys(link.secret, connection.hello, connection.welcome);
  connection.sealer.emplace(options_.seal, link.dials ? keys.to_listener : keys.to_dialer);
  connection.opener.emplace(options_.seal, link.dials ? keys.to_dialer : keys.to_listener);
  connection.stage = Stage::kOpen;
  link.was_up = true;
  link.home = peer_address(connection.socket.get()).host();
  link.answer_ms = kAnswerMs + 4 * round_trip_ms(connection.socket.get());
  link.tries = link.unanswered = link.disowned = link.refused = 0;
  link.silent_ticks = link.stuck_ticks = 0;
  // What the handshake has said; more may have come since on the connection before.
  link.told = link.dials ? connection.hello.received : connection.welcome.received;
  link.unsent = link.first;
  if (!take_acknowledgement(link, peer_received)) {
    return lose(link, "it acknowledged what was never sent");
  }
  activate(connection);
  if (!link.leaving) return;
  part_with(link);
  lose(link, "closed here");
}

// Leaves before any frame, and may wait for room in the socket like one.
void TcpTransport::tell(TcpConnection& connection, std::span<const std::byte> message) {
  connection.loose.insert(connection.loose.end(), message.begin(), message.end());
  activate(connection);
}

uint32_t TcpTransport::ticks(uint32_t ms) const {
  return std::max(1u, ms / kTickMs);
}

void TcpTransport::start_ticking() {
  if (std::exchange(ticking_, true)) return;
  const timespec period{.tv_sec = 0, .tv_nsec = kTickMs * 1'000'000L};
  const itimerspec times{.it_interval = period, .it_value = period};
  ::timerfd_settime(timer_.get(), 0, &times, nullptr);
}

void TcpTransport::on_timer() {
  uint64_t passed = 0;
  if (::read(timer_.get(), &passed, sizeof passed) != sizeof passed) return;
  passed = std::min(passed, kTicksPerRound);
  bool timed = true;
  for (; timed && passed > 0; --passed) timed = tick();
  if (timed) return;
  ticking_ = false;
  const itimerspec never{};
  ::timerfd_settime(timer_.get(), 0, &never, nullptr);
}

// False: nothing is being timed.
bool TcpTransport::tick() {
  const auto late = [](const auto& each) { return --each->ticks_left == 0; };
  for (const auto& listener : listeners_) {
    if (listener->paused) listener->paused = !watch(listener->socket.get(), *listener).ok();
  }
  Connections waiting = std::exchange(half_open_, {});
  bool timed = false;
  for (auto& each : waiting) {
    const bool over = late(each);
    totals_.connections_refused += over;
    if (over) {
      bury(std::move(each));
    } else {
      half_open_.push_back(std::move(each));
    }
  }
  Connections parting = std::exchange(parting_, {});
  for (auto& each : parting) {
    if (late(each)) {
      bury(std::move(each));
    } else {
      parting_.push_back(std::move(each));
    }
  }
  links_.for_each([&](PeerId, TcpLink& link) { timed |= tick(link); });
  for (const auto& link : leaving_) timed |= tick(*link);
  return timed || !half_open_.empty() || !parting_.empty() ||
         std::any_of(listeners_.begin(), listeners_.end(),
                     [](const auto& each) { return each->paused; });
}

bool TcpTransport::tick(TcpLink& link) {
  if (!link.down.ok()) return false;
  if (link.dialing) {
    if (--link.dialing->ticks_left == 0) {
      ++link.unanswered;
      dial_failed(link, {StatusCode::kTIMED_OUT, "no answer in time"});
    }
  } else if (link.retry_ticks > 0 && --link.retry_ticks == 0 && !link.connection) {
    dial_now(link);
  }
  return link.connection ? tick_open(link) : tick_absent(link);
}

// TCP waits longer and longer before it tries again what got lost; a new connection does not. It
// takes over once it has proved itself.
bool TcpTransport::tick_open(TcpLink& link) {
  acknowledge(*link.connection);
  if (link.first == nullptr) {
    link.got_through();
    link.unanswered = 0;
    link.silent_ticks = link.stuck_ticks = link.deaf_ticks = 0;
    return link.told != link.received;
  }
  link.barren_ticks += link.failing;
  const int on_their_way = bytes_on_their_way(link.connection->socket.get());
  const bool carried = carries(link, on_their_way);
  if (link.dials && !carried && !link.dialing && link.retry_ticks == 0) dial_now(link);
  if (carried && takes_nothing_in(link, on_their_way)) {
    lose(link, "it speaks, but has acknowledged nothing for " + std::to_string(lost_ms_) + " ms");
    return false;
  }
  return true;
}

// Each way by itself: what comes may get through while all that goes is lost. A long frame on a
// slow path arrives byte by byte, which is enough, but a few packets a second are what is left of a
// connection that has lost many: a new one is faster.
bool TcpTransport::carries(TcpLink& link, int on_their_way) {
  TcpConnection& connection = *link.connection;
  const uint64_t taken = connection.left_bytes - static_cast<uint64_t>(on_their_way);
  const bool moves = on_their_way == 0 || taken - connection.taken_bytes >= kTrickleBytes;
  if (moves) connection.taken_bytes = taken;
  link.stuck_ticks = moves ? 0 : link.stuck_ticks + 1;
  ++link.silent_ticks;
  look_behind_gaps(link);
  return std::max(link.silent_ticks, link.stuck_ticks) < ticks(kSilentMs + link.answer_ms);
}

// TCP hands on nothing behind a gap until it is filled, which takes a round trip or two: seconds
// where a path has a long queue. The path carries as much as ever meanwhile, or nothing at all
// because its acknowledgements wait in the other way's queue. The tries of a connection in back-off
// are too few to count.
void TcpTransport::look_behind_gaps(TcpLink& link) {
  if (std::max(link.silent_ticks, link.stuck_ticks) < kGapTicks) return;
  PathState& before = link.connection->path;
  const PathState now = path_of(link.connection->socket.get());
  const auto moved = [](uint32_t& ticks, uint32_t& was, uint32_t is) {
    const bool begins = ticks <= kGapTicks, many = is - was >= kTrickleSegments;
    if (begins || many) was = is;
    if (!begins && many) ticks = kGapTicks;
    return !begins && many;
  };
  const bool came = moved(link.silent_ticks, before.came, now.came);
  (void)moved(link.stuck_ticks, before.arrived, now.arrived);
  const uint32_t queue_ms =
      now.queued_ms < kQueueMsMin ? 0 : std::min(2 * now.queued_ms, kQueueMsMax);
  if (came || link.silent_ticks * kTickMs < queue_ms) events_.on_bytes(link.id);
}

// A peer that reads acknowledges within a tick or two, or behind the long record that it sends.
// What it never does would be kept for it for ever, heartbeats too. While newer bytes are on their
// way, nothing is known of those before, and nothing is forgotten.
bool TcpTransport::takes_nothing_in(TcpLink& link, int on_their_way) const {
  const TcpConnection& connection = *link.connection;
  const bool there = link.unsent == nullptr && connection.current == nullptr && on_their_way == 0;
  link.deaf_ticks += there && !connection.reader.midway();
  return link.deaf_ticks >= ticks(lost_ms_);
}

// Nothing is sent before both sides have connected: who has not been dialed by then waits for a
// dial, before that for nothing.
bool TcpTransport::tick_absent(TcpLink& link) {
  const bool due = link.was_up || link.dials || link.leaving || link.first != nullptr;
  if (!due) return false;
  const uint32_t limit_ms = link.leaving ? options_.handshake_ms : lost_ms_;
  if (++link.barren_ticks < ticks(limit_ms)) return true;
  lose(link, why_absent(link));
  return false;
}

// "; tried 10.1.0.3 4711, 172.17.0.1 4711": since there was a connection.
std::string TcpTransport::addresses_tried(const TcpLink& link) const {
  const size_t dialing = link.dialing != nullptr, all = link.addresses.size();
  const size_t count = std::min(std::min<size_t>(link.tries, link.address) + dialing, all);
  if (!link.dials || count == 0) return {};
  const size_t first = count == all ? 0 : link.address + dialing - count;
  std::string tried;
  for (size_t i = first; i < first + count; ++i) {
    tried += (tried.empty() ? "; tried " : ", ") + link.addresses[i % all].text();
  }
  return tried;
}

// Who cannot be let in is not to blame.
std::string TcpTransport::why_absent(const TcpLink& link) const {
  for (const auto& each : listeners_) {
    if (!link.dials && each->error != 0) return "cannot be let in: " + error_text(each->error);
  }
  if (link.was_up || link.dials) {
    return (link.silence.ok() ? "cannot be reached" : link.silence.message()) +
           addresses_tried(link);
  }
  std::string doors;
  for (const auto& each : listeners_) {
    doors += (doors.empty() ? "" : " or ") + own_address(each->socket.get()).text();
  }
  return "has not connected for gradients within " + std::to_string(lost_ms_) +
         " ms; it must be able to reach " + doors;
}

}  // namespace cgx::transport
