// The tcp transport. Internal to transport/tcp*.
//
// Thread rule: one thread makes it, calls it and is called back.
// Invariants: Events are called from progress() only; a connection is freed only when nobody is
// inside it; every event of epoll is taken in once, and what it allows is remembered until a system
// call denies it, so nobody waits for an event that has been. Time is counted in ticks of a timer
// that runs only while something is being timed.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/completions.h"
#include "transport/peer_table.h"
#include "transport/tcp.h"
#include "transport/tcp_connection.h"

namespace cgx::transport {

struct TcpLink {
  PeerId id;
  std::string name;
  uint64_t inbound_tag = 0;
  uint64_t outbound_tag = 0;
  LinkSecret secret{};
  bool dials = false;
  bool leaving = false;  // closed here before the peer could be told: it still is, for a while
  std::vector<SocketAddress> addresses;  // of the peer; the dialing side's

  std::unique_ptr<TcpConnection> connection;  // null: none is open
  std::unique_ptr<TcpConnection> dialing;
  bool was_up = false;      // there has been a connection
  std::string home;         // the peer's host on it
  uint32_t answer_ms = 0;   // a dial not answered for so long got lost; TCP would wait for a second
  uint32_t unanswered = 0;  // dials since there was a connection: the way may have become longer
  size_t address = 0;       // the one to try
  uint32_t tries = 0;       // that failed since there was a connection
  uint32_t retry_ticks = 0;   // until the next try
  uint32_t disowned = 0;      // so many greetings in a row were answered: no such link
  uint32_t refused = 0;       // so many dials home in a row: nobody listens
  bool failing = false;       // a connection has ended, and nothing has got through since
  uint32_t barren_ticks = 0;  // since then, or without the first connection (where due)
  uint32_t silent_ticks = 0;  // the peer owes an acknowledgement and says nothing
  uint32_t stuck_ticks = 0;   // bytes have left here, and its system takes none
  uint32_t deaf_ticks = 0;    // it owes one, and all is there; since the last one
  Status silence;             // why the last try failed

  // Frames that the peer has not acknowledged, oldest first; those from `unsent` on have not left.
  TcpSending* first = nullptr;
  TcpSending* unsent = nullptr;
  TcpSending* last = nullptr;
  uint64_t sent = 0;        // number of the last frame accepted by send()
  uint64_t acked = 0;       // of the last one the peer has taken in
  uint64_t received = 0;    // of the last one taken in here
  uint64_t told = 0;        // of those, what the peer has been told
  uint64_t told_bytes = 0;  // taken in since
  Status down;              // not OK: the peer is lost

  // A new frame has come, or word that one has arrived, or none is waiting.
  void got_through() {
    failing = false;
    barren_ticks = 0;
  }
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(TcpOptions options, Events& events);
  ~TcpTransport() override;
  Status open();  // once, before anything else

  std::string_view name() const override { return "tcp"; }
  Caps caps() const override;
  Result<Endpoint> local_endpoint() override { return endpoint_; }
  Result<PeerId> connect(const ConnectOptions& options) override;
  void close(PeerId peer) override;
  Status send(PeerId to, const Frame& frame, SendToken token) override;
  int progress() override;
  int event_fd() const override { return epoll_.get(); }
  bool arm() override;
  void lose_after(uint32_t ms) override { lost_ms_ = ms; }
  Totals totals() const override { return totals_; }

 private:
  using Connections = std::vector<std::unique_ptr<TcpConnection>>;
  struct Listener : TcpWatched {
    Socket socket;
    bool paused = false;  // descriptors ran out: look again at the next tick
    int error = 0;        // errno: why nobody can be let in
  };

  // Rounds (tcp_transport.cc).
  int take_events();
  void take_connection_event(TcpConnection& connection, uint32_t events);
  int work();
  int report_failures();
  Status watch(int descriptor, TcpWatched& watched);
  void activate(TcpConnection& connection);

  // Records in and out (tcp_traffic.cc).
  int read(TcpConnection& connection);
  void came(TcpConnection& connection);
  int read_records(TcpConnection& connection);
  bool take(TcpConnection& connection, const RecordReader::Record& record);
  bool take_frame(TcpConnection& connection, const RecordReader::Record& record);
  bool take_acknowledgement(TcpLink& link, uint64_t received);
  void release(TcpLink& link);
  void acknowledge(TcpConnection& connection);
  int read_handshake(TcpConnection& connection);
  int discard(TcpConnection& connection);
  // Bytes received; 0: none now, or the connection has been failed.
  size_t receive(TcpConnection& connection, const iovec* parts, int count, size_t bytes);
  int write(TcpConnection& connection);
  bool write_loose(TcpConnection& connection);
  bool write_frame(TcpConnection& connection);
  void seal(TcpConnection& connection, TcpSending& sending);
  size_t transmit(TcpConnection& connection, const iovec* parts, int count);
  void finish_frame(TcpConnection& connection);
  void say(TcpConnection& connection, RecordType type);

  // Links (tcp_links.cc).
  TcpLink* find_tag(uint64_t tag) const;
  void lose(TcpLink& link, const std::string& why);
  void broken(TcpLink& link, const Status& why);
  void drop_sends(TcpLink& link, const Status& why);
  void part_with(TcpLink& link);
  void leave(std::unique_ptr<TcpLink> link);
  void forget_those_that_left();
  void dial_now(TcpLink& link);
  uint32_t dial_ms(const TcpLink& link) const;
  void dial_failed(TcpLink& link, const Status& why);
  bool leads_home(const TcpLink& link) const;
  bool point_home(TcpLink& link) const;
  void fail(TcpConnection& connection, const Status& why);
  void bury(std::unique_ptr<TcpConnection> connection);
  void bury_from(Connections& place, const TcpConnection& connection);
  Result<std::vector<SocketAddress>> addresses_of(const ConnectOptions& options) const;
  bool is_own(const SocketAddress& address) const;
  TcpSending& take_sending();
  void free_sending(TcpSending& sending);

  // Handshakes (tcp_handshakes.cc).
  void accept_some(Listener& listener);
  void pause(Listener& listener);
  void admit(Socket socket);
  void make_room(const std::string& host, int descriptor);
  std::string host_with_most() const;
  TcpConnection& least_likely(const std::string& host) const;
  void connected(TcpConnection& connection);
  size_t expected(const TcpConnection& connection) const;
  void take_handshake(TcpConnection& connection);
  void on_hello(TcpConnection& connection);
  void on_welcome(TcpConnection& connection);
  void on_proof(TcpConnection& connection);
  void refuse(TcpConnection& connection);
  void bury_earlier_tries(const TcpConnection& connection);
  std::unique_ptr<TcpConnection> take_half_open(const TcpConnection& connection);
  void open_records(TcpConnection& connection, uint64_t peer_received);
  void tell(TcpConnection& connection, std::span<const std::byte> message);

  // Time (tcp_handshakes.cc).
  uint32_t ticks(uint32_t ms) const;
  void start_ticking();
  void on_timer();
  bool tick();
  bool tick(TcpLink& link);
  bool tick_open(TcpLink& link);
  bool carries(TcpLink& link, int on_their_way);
  void look_behind_gaps(TcpLink& link);
  bool takes_nothing_in(TcpLink& link, int on_their_way) const;
  bool tick_absent(TcpLink& link);
  std::string addresses_tried(const TcpLink& link) const;
  std::string why_absent(const TcpLink& link) const;

  const TcpOptions options_;
  uint32_t lost_ms_ = options_.lost_ms;
  Events& events_;
  Endpoint endpoint_;
  Socket epoll_;  // descriptors that close themselves
  Socket timer_;
  TcpWatched timer_watch_{TcpWatched::Kind::kTimer};
  bool ticking_ = false;
  std::vector<std::unique_ptr<Listener>> listeners_;

  PeerTable<TcpLink> links_;
  std::unordered_map<uint64_t, TcpLink*> by_tag_;
  std::vector<std::unique_ptr<TcpLink>> leaving_;
  Connections half_open_;  // accepted, oldest first
  Connections parting_;
  Connections dead_;
  std::vector<TcpConnection*> active_, working_;
  std::vector<std::unique_ptr<TcpSending>> sendings_;
  TcpSending* free_sendings_ = nullptr;
  Completions completions_;
  std::vector<PeerId> failed_;  // lost and not yet reported
  bool in_progress_ = false;
  Totals totals_;
};

}  // namespace cgx::transport
