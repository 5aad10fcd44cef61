// The life of a link: connect, dial, loss, goodbye.
#include <sys/epoll.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "proto/wire/bytes.h"
#include "transport/tcp_transport.h"

namespace cgx::transport {
namespace {

using Stage = TcpConnection::Stage;

constexpr uint32_t kRetryTicksMax = 16, kRetryTicksKnown = 2;  // known: has been reached before
constexpr size_t kDialLengths = 5;                             // each twice the one before

// "10.0.0.3 4711"
Result<SocketAddress> parse_address(std::string_view text) {
  const size_t space = text.find(' ');
  uint16_t port = 0;
  if (space != std::string_view::npos) {
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data() + space + 1, end, port).ptr != end) port = 0;
  }
  if (port == 0) return invalid_argument("an address without a port");
  return SocketAddress::parse(std::string(text.substr(0, space)), port);
}

// u8 count, count x (u8 length, text)
Result<std::vector<SocketAddress>> parse_addresses(std::span<const std::byte> bytes) {
  wire::Reader reader(bytes);
  std::vector<SocketAddress> addresses;
  const auto count = reader.get<uint8_t>();
  for (unsigned i = 0; i < count && reader.ok(); ++i) {
    const auto length = reader.get<uint8_t>();
    std::string text;
    for (unsigned k = 0; k < length; ++k) text += static_cast<char>(reader.get<uint8_t>());
    CGX_ASSIGN_OR_RETURN(const SocketAddress address, parse_address(text));
    addresses.push_back(address);
  }
  if (!addresses.empty() && reader.done()) return addresses;
  return invalid_argument("an address of " + std::to_string(bytes.size()) +
                          " bytes that names no list of hosts and ports");
}

}  // namespace

Result<std::vector<SocketAddress>> TcpTransport::addresses_of(const ConnectOptions& options) const {
  Result<std::vector<SocketAddress>> addresses = parse_addresses(options.remote.address);
  if (!addresses.ok()) {
    return Status(addresses.status().code(), options.name + ": " + addresses.status().message());
  }
  std::string all;
  for (const SocketAddress& each : *addresses) all += (all.empty() ? "" : ", ") + each.host();
  const std::string its_addresses = options.name + ": its addresses (" + all + ") ";
  std::erase_if(*addresses,
                [&](const auto& each) { return options_.admits && !options_.admits(each.host()); });
  if (addresses->empty())
    return invalid_argument(its_addresses + "lie outside the trusted networks");
  if (options.dials) std::erase_if(*addresses, [&](const auto& each) { return is_own(each); });
  if (!addresses->empty()) return addresses;
  return invalid_argument(its_addresses + "are this daemon's own");
}

bool TcpTransport::is_own(const SocketAddress& address) const {
  return std::any_of(listeners_.begin(), listeners_.end(), [&](const auto& each) {
    return own_address(each->socket.get()).text() == address.text();
  });
}

Result<PeerId> TcpTransport::connect(const ConnectOptions& options) {
  if (options.remote.settings != endpoint_.settings) {
    return Status(StatusCode::kMISMATCH, options.name + ": transport settings differ: ours \"" +
                                             endpoint_.settings + "\", theirs \"" +
                                             options.remote.settings + "\"");
  }
  const auto known = by_tag_.find(options.inbound_tag);
  if (known != by_tag_.end() && !known->second->leaving) {
    return Status(StatusCode::kALREADY_EXISTS, options.name + ": inbound tag is in use");
  }
  auto link = std::make_unique<TcpLink>();
  CGX_ASSIGN_OR_RETURN(link->addresses, addresses_of(options));
  link->name = options.name;
  link->inbound_tag = options.inbound_tag;
  link->outbound_tag = options.outbound_tag;
  link->secret = options.secret;
  link->dials = options.dials;
  TcpLink& opened = *link;
  opened.id = links_.add(std::move(link));
  by_tag_[opened.inbound_tag] = &opened;
  if (opened.dials) dial_now(opened);
  return opened.id;
}

TcpLink* TcpTransport::find_tag(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  return found != by_tag_.end() && found->second->down.ok() ? found->second : nullptr;
}

void TcpTransport::dial_now(TcpLink& link) {
  const SocketAddress& address = link.addresses[link.address % link.addresses.size()];
  Result<Socket> socket = dial(address, {options_.congestion, options_.stalled_ms});
  if (!socket.ok()) return dial_failed(link, socket.status());
  link.dialing =
      std::make_unique<TcpConnection>(std::move(*socket), Stage::kConnecting, options_.frame_bytes);
  link.dialing->link = &link;
  link.dialing->ticks_left = ticks(dial_ms(link));
  const Status watched = watch(link.dialing->socket.get(), *link.dialing);
  if (!watched.ok()) return dial_failed(link, watched);
  start_ticking();
}

// How long an answer is waited for. What got lost is best dialed anew; a way that has become longer
// answers only who waits. So the waits grow, and then begin again at the shortest, which notices
// soonest that a path carries again. Before there was a connection, each address has its share of
// the time until the link is lost.
uint32_t TcpTransport::dial_ms(const TcpLink& link) const {
  const size_t addresses = link.addresses.size();
  if (!link.was_up) {
    const uint32_t share_ms = lost_ms_ / static_cast<uint32_t>(addresses);
    return std::min(share_ms - std::min(share_ms, kTickMs), options_.handshake_ms);
  }
  const size_t round = link.unanswered / addresses;
  return std::min(link.answer_ms << round % kDialLengths, options_.handshake_ms);
}

void TcpTransport::dial_failed(TcpLink& link, const Status& why) {
  if (link.dialing) bury(std::move(link.dialing));
  if (!link.connection) link.silence = why;
  const bool asked_again = why.code() == StatusCode::kNOT_FOUND && leads_home(link);
  if (!asked_again && (!link.was_up || link.dials)) ++link.address;
  if (!asked_again) link.refused = 0;
  const size_t round = link.tries++ / link.addresses.size();
  link.retry_ticks =
      std::min(1u << std::min<size_t>(round, 8), link.was_up ? kRetryTicksKnown : kRetryTicksMax);
  if (asked_again) link.retry_ticks = kRetryTicksKnown;  // however many other addresses there are
  start_ticking();
}

// What a failure means depends on how far the connection was.
void TcpTransport::fail(TcpConnection& connection, const Status& why) {
  switch (connection.stage) {
    case Stage::kConnecting:
    case Stage::kGreeting:
      return dial_failed(*connection.link, why);
    case Stage::kAccepted:
      if (connection.heard_bytes == 0) return bury_from(half_open_, connection);
      return refuse(connection);
    case Stage::kWelcoming:
      return refuse(connection);
    case Stage::kOpen:
      return broken(*connection.link, why);
    case Stage::kParting:
      return bury_from(parting_, connection);
    case Stage::kDead:
      return;
  }
}

// epoll is told first: a child that is being spawned has the descriptor, too, until it runs its own
// program, and so long epoll would go on to report a connection that is gone.
void TcpTransport::bury(std::unique_ptr<TcpConnection> connection) {
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  connection->stage = Stage::kDead;
  connection->readable = connection->writable = false;
  connection->loose.clear();
  connection->socket = Socket();
  std::erase(active_, connection.get());
  dead_.push_back(std::move(connection));
}

void TcpTransport::bury_from(Connections& place, const TcpConnection& connection) {
  const auto found = std::find_if(place.begin(), place.end(),
                                  [&](const auto& each) { return each.get() == &connection; });
  if (found == place.end()) return;
  std::unique_ptr<TcpConnection> taken = std::move(*found);
  place.erase(found);
  bury(std::move(taken));
}

// False: the peer listens nowhere on the host it came from.
bool TcpTransport::point_home(TcpLink& link) const {
  for (size_t i = 0; i < link.addresses.size(); ++i) {
    link.address = i;
    if (leads_home(link)) return true;
  }
  return false;
}

// Whether a dial now tries the address where the peer has been.
bool TcpTransport::leads_home(const TcpLink& link) const {
  return link.was_up && link.addresses[link.address % link.addresses.size()].host() == link.home;
}

// A connection has ended, not the link: frames wait for the next connection. Both sides try, the
// one that does not dial only to see whether the peer's process is there. After a connection that
// brought nothing the next one waits for a tick, or two sides that only ever break would do nothing
// else.
void TcpTransport::broken(TcpLink& link, const Status& why) {
  bury(std::move(link.connection));
  link.silence = why;
  link.silent_ticks = link.tries = link.unanswered = 0;
  if (link.barren_ticks >= ticks(lost_ms_)) return lose(link, why.message());
  totals_.connections_lost += 1;
  start_ticking();
  const bool again = std::exchange(link.failing, true);
  const bool can_dial = link.dials || point_home(link);
  if (!can_dial || link.dialing) return;
  if (again) {
    link.retry_ticks = 1;
  } else {
    dial_now(link);
  }
}

void TcpTransport::lose(TcpLink& link, const std::string& why) {
  if (!link.down.ok()) return;
  link.down = {StatusCode::kPEER_LOST, link.name + ": " + why};
  if (link.connection) bury(std::move(link.connection));
  if (link.dialing) bury(std::move(link.dialing));
  drop_sends(link, link.down);
  if (!link.leaving) failed_.push_back(link.id);
}

void TcpTransport::drop_sends(TcpLink& link, const Status& why) {
  while (link.first != nullptr) {
    TcpSending& sending = *link.first;
    link.first = sending.next;
    if (sending.token != kNoToken) completions_.add(link.id, sending.token, why);
    free_sending(sending);
  }
  link.last = link.unsent = nullptr;
}

void TcpTransport::close(PeerId peer) {
  std::unique_ptr<TcpLink> link = links_.remove(peer);
  if (!link) return;
  std::erase(failed_, peer);
  if (link->connection && link->dialing) bury(std::move(link->dialing));
  const bool lost = !link->down.ok();
  const bool told = link->connection != nullptr;
  if (told) part_with(*link);
  drop_sends(*link, {StatusCode::kCANCELLED, link->name + ": closed here"});
  if (!told && !lost) return leave(std::move(link));
  by_tag_.erase(link->inbound_tag);
}

// A link without a connection: the peer hears of its end as soon as there is one.
void TcpTransport::leave(std::unique_ptr<TcpLink> link) {
  link->leaving = true;
  link->barren_ticks = 0;
  leaving_.push_back(std::move(link));
  start_ticking();
}

void TcpTransport::forget_those_that_left() {
  std::erase_if(leaving_, [&](const auto& link) {
    if (link->down.ok()) return false;
    const auto known = by_tag_.find(link->inbound_tag);
    if (known != by_tag_.end() && known->second == link.get()) by_tag_.erase(known);
    return true;
  });
}

// The frame that is half way out leaves whole, from a copy, so that the peer can read the goodbye.
void TcpTransport::part_with(TcpLink& link) {
  TcpConnection& connection = *link.connection;
  if (const TcpSending* half = connection.current) {
    const bool encrypted = options_.seal == TcpSeal::kEncrypt;
    std::vector<std::byte> all;
    for (const Bytes part : {std::as_bytes(std::span(&half->head, 1)),
                             encrypted ? connection.sealed_bytes() : half->caller_header(),
                             encrypted ? Bytes() : half->payload, Bytes(connection.loose)}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    connection.loose = std::move(all);
    connection.loose_sent = connection.current_sent;
  }
  say(connection, RecordType::kGoodbye);
  connection.stage = Stage::kParting;
  connection.link = nullptr;
  connection.current = nullptr;
  connection.ticks_left = ticks(options_.handshake_ms);
  parting_.push_back(std::move(link.connection));
  start_ticking();
  if (connection.writable) write(connection);
}

}  // namespace cgx::transport
