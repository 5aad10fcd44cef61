#include "transport/loopback.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "transport/peer_table.h"

namespace cgx::transport {
namespace {

constexpr const char* kSettings = "loopback/1";

std::vector<std::byte> to_address(uint32_t number) {
  std::vector<std::byte> address(sizeof number);
  std::memcpy(address.data(), &number, sizeof number);
  return address;
}

std::vector<std::byte> copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

class LoopbackEndpoint final : public Transport {
 public:
  LoopbackEndpoint(LoopbackNetwork& network, uint32_t number, Events& events)
      : network_(network), events_(events), number_(number) {}
  ~LoopbackEndpoint() override;

  std::string_view name() const override { return "loopback"; }
  Caps caps() const override { return network_.options_.caps; }
  Result<Endpoint> local_endpoint() override { return Endpoint{to_address(number_), kSettings}; }
  Result<PeerId> connect(const ConnectOptions& options) override;
  void close(PeerId peer) override;
  Status send(PeerId to, const Frame& frame, SendToken token) override;
  int progress() override;
  int event_fd() const override { return -1; }  // virtual time: nobody sleeps
  bool arm() override { return inbox_.empty() && network_.next_event_ns() > network_.now_ns(); }
  Totals totals() const override { return totals_; }

 private:
  struct Pending {
    std::vector<std::byte> header;
    std::span<const std::byte> payload;
    SendToken token = kNoToken;
    bool size_only = false;
  };
  struct Link {
    std::string name;
    uint32_t remote = 0;
    uint64_t inbound_tag = 0;
    uint64_t outbound_tag = 0;
    bool down = false;
    int64_t last_arrival_ns = 0;
    std::deque<Pending> pending;         // accepted by send(), not yet left
    std::deque<SendToken> on_their_way;  // those whose arrival is to be told
  };
  // What is on its way of a payload: all of it, or its size.
  class Cargo {
   public:
    Cargo() = default;
    static Cargo of(std::span<const std::byte> payload) {
      Cargo cargo;
      cargo.copied_ = copy(payload);
      cargo.bytes_ = cargo.copied_;
      return cargo;
    }
    static Cargo of_size(std::span<const std::byte> unreadable) {
      Cargo cargo;
      cargo.bytes_ = unreadable;
      return cargo;
    }
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    std::vector<std::byte> copied_;     // stays where it is when the cargo moves
    std::span<const std::byte> bytes_;  // of `copied_`, or that nobody may read
  };
  // What progress() has to report, in the order in which it became known.
  struct Notice {
    enum class Kind { kFrame, kSent, kDown } kind = Kind::kFrame;
    PeerId peer;
    SendToken token = kNoToken;
    Status status;
    std::vector<std::byte> header;
    Cargo payload;
  };

  void depart(PeerId to);
  void has_arrived(PeerId at);
  void arrive(uint64_t tag, std::vector<std::byte> header, Cargo payload);
  void hear_close(uint64_t tag, const Status& why);
  void tell_close(Link& link, const char* how);
  void report_pending(PeerId peer, Link& link, const Status& status);
  void deliver(Notice& notice);

  LoopbackNetwork& network_;
  Events& events_;
  const uint32_t number_;
  int64_t out_free_ns_ = 0;  // when the port's sending side has sent all it accepted
  int64_t in_free_ns_ = 0;
  PeerTable<Link> links_;
  std::unordered_map<uint64_t, PeerId> by_tag_;
  std::deque<Notice> inbox_;
  bool in_progress_ = false;
  Totals totals_;
};

LoopbackEndpoint::~LoopbackEndpoint() {
  links_.for_each([&](PeerId, Link& link) { tell_close(link, "its process ended"); });
  network_.endpoints_[number_] = nullptr;
}

Result<PeerId> LoopbackEndpoint::connect(const ConnectOptions& options) {
  if (options.remote.settings != kSettings) {
    return Status(StatusCode::kMISMATCH, options.name + ": transport settings differ: ours \"" +
                                             kSettings + "\", theirs \"" + options.remote.settings +
                                             "\"");
  }
  uint32_t remote = 0;
  if (options.remote.address.size() != sizeof remote) {
    return invalid_argument(options.name + ": address has " +
                            std::to_string(options.remote.address.size()) + " bytes, must be 4");
  }
  std::memcpy(&remote, options.remote.address.data(), sizeof remote);
  if (remote >= network_.endpoints_.size()) {
    return invalid_argument(options.name + ": no endpoint " + std::to_string(remote));
  }
  if (by_tag_.contains(options.inbound_tag)) {
    return Status(StatusCode::kALREADY_EXISTS, options.name + ": inbound tag is in use");
  }
  auto link = std::make_unique<Link>();
  link->name = options.name;
  link->remote = remote;
  link->inbound_tag = options.inbound_tag;
  link->outbound_tag = options.outbound_tag;
  const PeerId id = links_.add(std::move(link));
  by_tag_[options.inbound_tag] = id;
  return id;
}

void LoopbackEndpoint::close(PeerId peer) {
  Link* link = links_.find(peer);
  if (!link) return;
  report_pending(peer, *link, {StatusCode::kCANCELLED, link->name + ": closed here"});
  tell_close(*link, "closed by the peer");
  by_tag_.erase(link->inbound_tag);
  links_.remove(peer);
}

Status LoopbackEndpoint::send(PeerId to, const Frame& frame, SendToken token) {
  Link* link = links_.find(to);
  if (!link) return {StatusCode::kNOT_FOUND, "send to a peer that is not connected"};
  if (link->down) return {StatusCode::kPEER_LOST, link->name + ": link is down"};
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));

  const size_t bytes =
      frame.header.size() + frame.payload.size() + network_.options_.frame_overhead_bytes;
  out_free_ns_ = std::max(out_free_ns_, network_.now_ns()) + network_.transfer_ns(bytes);
  const auto& size_only = network_.options_.size_only;
  link->pending.push_back(
      {copy(frame.header), frame.payload, token, size_only && size_only(frame)});
  network_.schedule(out_free_ns_, [&network = network_, from = number_, to] {
    if (LoopbackEndpoint* self = network.endpoints_[from]) self->depart(to);
  });
  return {};
}

void LoopbackEndpoint::depart(PeerId to) {
  Link* link = links_.find(to);
  if (!link || link->down) return;  // its pending sends have been reported
  Pending frame = std::move(link->pending.front());
  link->pending.pop_front();
  totals_.frames_sent += 1;
  totals_.bytes_sent += frame.header.size() + frame.payload.size();
  LoopbackEndpoint* remote = network_.endpoints_[link->remote];
  const bool on_arrival = network_.options_.sent_on_arrival && remote != nullptr;
  if (frame.token != kNoToken && on_arrival) {
    link->on_their_way.push_back(frame.token);
  } else if (frame.token != kNoToken) {
    inbox_.push_back({.kind = Notice::Kind::kSent, .peer = to, .token = frame.token});
  }
  if (!remote) return;

  const size_t bytes =
      frame.header.size() + frame.payload.size() + network_.options_.frame_overhead_bytes;
  const int64_t latency_ns =
      network_.options_.latency_ns
          ? network_.options_.latency_ns({number_, link->remote, bytes, network_.now_ns()})
          : 0;
  // The last bit has just left. A port of limited speed takes as long to receive, one frame at a
  // time.
  const int64_t transfer_ns = network_.transfer_ns(bytes);
  const int64_t port_ns = transfer_ns > 0 ? remote->in_free_ns_ + transfer_ns : 0;
  const int64_t at_ns = std::max({network_.now_ns() + latency_ns, port_ns, link->last_arrival_ns});
  remote->in_free_ns_ = at_ns;
  link->last_arrival_ns = at_ns;
  Cargo cargo = frame.size_only ? Cargo::of_size(network_.unreadable(frame.payload.size()))
                                : Cargo::of(frame.payload);
  network_.schedule(at_ns,
                    [&network = network_, from = number_, link_id = to, to = link->remote,
                     tag = link->outbound_tag, told = on_arrival && frame.token != kNoToken,
                     header = std::move(frame.header), payload = std::move(cargo)]() mutable {
                      LoopbackEndpoint* peer = network.endpoints_[to];
                      LoopbackEndpoint* self = network.endpoints_[from];
                      if (peer) peer->arrive(tag, std::move(header), std::move(payload));
                      if (self && told) self->has_arrived(link_id);
                    });
}

void LoopbackEndpoint::has_arrived(PeerId at) {
  Link* link = links_.find(at);
  if (!link || link->on_their_way.empty()) return;  // its sends have been reported
  inbox_.push_back({.kind = Notice::Kind::kSent, .peer = at, .token = link->on_their_way.front()});
  link->on_their_way.pop_front();
}

void LoopbackEndpoint::arrive(uint64_t tag, std::vector<std::byte> header, Cargo payload) {
  auto found = by_tag_.find(tag);
  const Link* link = found == by_tag_.end() ? nullptr : links_.find(found->second);
  if (!link || link->down) {
    totals_.frames_dropped += 1;
    return;
  }
  totals_.frames_received += 1;
  totals_.bytes_received += header.size() + payload.bytes().size();
  inbox_.push_back({.kind = Notice::Kind::kFrame,
                    .peer = found->second,
                    .header = std::move(header),
                    .payload = std::move(payload)});
}

void LoopbackEndpoint::tell_close(Link& link, const char* how) {
  if (link.down || !network_.endpoints_[link.remote]) return;
  const int64_t latency_ns =
      network_.options_.latency_ns
          ? network_.options_.latency_ns({number_, link.remote, 0, network_.now_ns()})
          : 0;
  const int64_t at_ns = std::max(network_.now_ns() + latency_ns, link.last_arrival_ns);
  network_.schedule(at_ns, [&network = network_, to = link.remote, tag = link.outbound_tag, how] {
    if (LoopbackEndpoint* peer = network.endpoints_[to]) {
      peer->hear_close(tag, {StatusCode::kPEER_LOST, how});
    }
  });
}

void LoopbackEndpoint::hear_close(uint64_t tag, const Status& why) {
  auto found = by_tag_.find(tag);
  Link* link = found == by_tag_.end() ? nullptr : links_.find(found->second);
  if (!link || link->down) return;
  const Status status(why.code(), link->name + ": " + why.message());
  link->down = true;
  report_pending(found->second, *link, status);
  inbox_.push_back({.kind = Notice::Kind::kDown, .peer = found->second, .status = status});
}

void LoopbackEndpoint::report_pending(PeerId peer, Link& link, const Status& status) {
  std::deque<SendToken> tokens = std::exchange(link.on_their_way, {});
  for (const Pending& frame : link.pending) {
    if (frame.token != kNoToken) tokens.push_back(frame.token);
  }
  for (const SendToken token : tokens) {
    inbox_.push_back({.kind = Notice::Kind::kSent, .peer = peer, .token = token, .status = status});
  }
  link.pending.clear();
}

int LoopbackEndpoint::progress() {
  CGX_ASSERT(!in_progress_);
  in_progress_ = true;
  network_.advance_to(network_.now_ns());
  const size_t due = inbox_.size();  // what callbacks cause waits for the next call
  for (size_t i = 0; i < due; ++i) {
    Notice notice = std::move(inbox_.front());
    inbox_.pop_front();
    deliver(notice);
  }
  in_progress_ = false;
  return static_cast<int>(due);
}

void LoopbackEndpoint::deliver(Notice& notice) {
  const bool open = links_.find(notice.peer) != nullptr;
  switch (notice.kind) {
    case Notice::Kind::kFrame:
      if (open) events_.on_frame(notice.peer, {notice.header, notice.payload.bytes()});
      return;
    case Notice::Kind::kSent:
      events_.on_sent(notice.peer, notice.token, notice.status);
      return;
    case Notice::Kind::kDown:
      if (open) events_.on_peer_down(notice.peer, notice.status);
      return;
  }
}

LoopbackNetwork::LoopbackNetwork(Options options) : options_(std::move(options)) {}

LoopbackNetwork::~LoopbackNetwork() {
  for (const LoopbackEndpoint* endpoint : endpoints_) CGX_ASSERT(endpoint == nullptr);
  if (unreadable_ != nullptr) munmap(unreadable_, options_.caps.frame_bytes_max);
}

std::span<const std::byte> LoopbackNetwork::unreadable(size_t bytes) {
  if (unreadable_ == nullptr) {
    unreadable_ = mmap(nullptr, options_.caps.frame_bytes_max, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CGX_ASSERT(unreadable_ != MAP_FAILED);
  }
  return {static_cast<const std::byte*>(unreadable_), bytes};
}

std::unique_ptr<Transport> LoopbackNetwork::make_endpoint(Events& events) {
  auto endpoint =
      std::make_unique<LoopbackEndpoint>(*this, static_cast<uint32_t>(endpoints_.size()), events);
  endpoints_.push_back(endpoint.get());
  return endpoint;
}

int64_t LoopbackNetwork::next_event_ns() const {
  return events_.empty() ? kNever : events_.begin()->first.first;
}

void LoopbackNetwork::advance_to(int64_t now_ns) {
  CGX_ASSERT(now_ns >= now_ns_);
  while (!events_.empty() && events_.begin()->first.first <= now_ns) {
    auto event = events_.extract(events_.begin());
    now_ns_ = std::max(now_ns_, event.key().first);
    event.mapped()();
  }
  now_ns_ = now_ns;
}

void LoopbackNetwork::schedule(int64_t at_ns, std::function<void()> run) {
  events_.emplace(std::pair{at_ns, next_sequence_++}, std::move(run));
}

int64_t LoopbackNetwork::transfer_ns(size_t bytes) const {
  const uint64_t rate = options_.port_bytes_per_second;
  if (rate == 0) return 0;
  return static_cast<int64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000u / rate);
}

}  // namespace cgx::transport
