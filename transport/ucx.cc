#include "transport/ucx.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

#include "transport/peer_table.h"
#include "transport/ucx_context.h"
#include "transport/ucx_sockets.h"

namespace cgx::transport {
namespace {

// UCX active messages. Header: link tag, for a frame the caller's header behind it.
constexpr unsigned kFrame = 0;
constexpr unsigned kGoodbye = 1;  // the sender closed the link; UCX alone would not tell
constexpr size_t kTagBytes = sizeof(uint64_t);
constexpr size_t kAddressBytesMax = 4096;
constexpr int kFinalRounds = 1000;  // of progress when the transport ends

// Endpoint.address: count of TCP listening ports, the ports (little endian), UCX's worker address.
std::vector<std::byte> pack_address(const Ports& ports, const void* worker, size_t worker_bytes) {
  std::vector<std::byte> packed(1 + ports.size() * 2 + worker_bytes);
  packed[0] = static_cast<std::byte>(ports.size());
  std::memcpy(packed.data() + 1, ports.data(), ports.size() * 2);
  std::memcpy(packed.data() + 1 + ports.size() * 2, worker, worker_bytes);
  return packed;
}

struct RemoteAddress {
  Ports ports;
  std::vector<std::byte> worker;
};

Result<RemoteAddress> unpack_address(std::span<const std::byte> packed) {
  const size_t ports = packed.empty() ? 0 : static_cast<size_t>(packed[0]);
  if (packed.size() <= 1 + ports * 2 || packed.size() > kAddressBytesMax) {
    return invalid_argument("transport address of " + std::to_string(packed.size()) +
                            " bytes is malformed");
  }
  const auto worker = packed.subspan(1 + ports * 2);
  RemoteAddress address{.ports = Ports(ports), .worker = {worker.begin(), worker.end()}};
  std::memcpy(address.ports.data(), packed.data() + 1, ports * 2);
  return address;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(UcxContext ucx, UcxOptions options, Ports ports, Events& events);
  ~UcxTransport() override;
  Status open();

  std::string_view name() const override { return "ucx"; }
  Caps caps() const override {
    return {.header_bytes_max = kUcxHeaderBytesMax,
            .frame_bytes_max = std::max(kUcxMessageBytesMax, options_.frame_bytes),
            .frame_bytes_best = options_.frame_bytes,
            .network = true};
  }
  Result<Endpoint> local_endpoint() override;
  Result<PeerId> connect(const ConnectOptions& options) override;
  void close(PeerId peer) override;
  Status send(PeerId to, const Frame& frame, SendToken token) override;
  int progress() override;
  int event_fd() const override { return ucx_.event_fd; }
  bool arm() override;
  Totals totals() const override { return totals_; }

 private:
  // One connection. Lives until UCX has let go of every buffer handed to it.
  struct Link {
    UcxTransport* transport = nullptr;
    PeerId id;
    std::string name;
    uint64_t inbound_tag = 0;
    uint64_t outbound_tag = 0;
    RemoteAddress remote;
    ucp_ep_h endpoint = nullptr;  // null once handed to ucp_ep_close_nbx
    uint32_t in_flight = 0;       // sends UCX still holds
    bool closed_here = false;     // by close(): no more callbacks but on_sent
    Status down;                  // not OK: UCX reported the peer's failure
    bool sent_once = false, received_once = false;
  };
  // What one send needs until UCX is done with it; pooled.
  struct Sending {
    UcxTransport* transport = nullptr;
    Link* link = nullptr;  // null: a goodbye, nobody waits for it
    SendToken token = kNoToken;
    size_t bytes = 0;
    alignas(8) std::byte header[kTagBytes + kUcxHeaderBytesMax];
  };
  struct Completion {
    PeerId peer;
    SendToken token = kNoToken;
    Status status;
  };

  static ucs_status_t on_frame_message(void* self, const void* header, size_t header_bytes,
                                       void* payload, size_t payload_bytes,
                                       const ucp_am_recv_param_t* param);
  static ucs_status_t on_goodbye_message(void* self, const void* header, size_t header_bytes,
                                         void* payload, size_t payload_bytes,
                                         const ucp_am_recv_param_t* param);
  static void on_send_done(void* request, ucs_status_t status, void* sending);
  static void on_failure(void* link, ucp_ep_h endpoint, ucs_status_t status);

  Status handle(unsigned message, ucp_am_recv_callback_t callback);
  Status open_endpoint(Link& link);
  ucs_status_ptr_t start(ucp_ep_h endpoint, unsigned message, Sending& sending, size_t header_bytes,
                         std::span<const std::byte> payload);
  Sending& take_sending();
  void finish(Sending& sending, ucs_status_t status);
  void receive(uint64_t tag, const Frame& frame);
  Link* find_tag(uint64_t tag) const;
  void lose(Link& link, const std::string& why);
  void first_frame(bool& done_before, const Link& link);
  void say_goodbye(const Link& link);
  void end_link(Link& link);
  void release_endpoint(Link& link, bool force);
  void release_closed();
  int report_completions();
  int report_failures();
  Status status_of(const Link& link, ucs_status_t status) const;

  const UcxOptions options_;
  const std::string settings_;
  const Ports ports_;
  Events& events_;
  UcxContext ucx_;
  PeerTable<Link> links_;
  std::unordered_map<uint64_t, Link*> by_tag_;
  std::vector<std::unique_ptr<Link>> closed_;  // waiting for UCX
  int flushing_ = 0;                           // endpoints UCX is still closing
  std::vector<PeerId> failed_;                 // on_peer_down is due
  std::vector<Completion> completions_, reporting_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> free_sendings_;
  bool in_progress_ = false;
  Totals totals_;
};

UcxTransport::UcxTransport(UcxContext ucx, UcxOptions options, Ports ports, Events& events)
    : options_(std::move(options)),
      settings_(ucx_settings(options_)),
      ports_(std::move(ports)),
      events_(events),
      ucx_(std::move(ucx)) {}

Status UcxTransport::open() {
  CGX_RETURN_IF_ERROR(handle(kFrame, &UcxTransport::on_frame_message));
  CGX_RETURN_IF_ERROR(handle(kGoodbye, &UcxTransport::on_goodbye_message));
  if (options_.congestion.empty()) return {};
  return set_congestion(options_.congestion, ports_, {});
}

Status UcxTransport::handle(unsigned message, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = callback;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(ucx_.worker.get(), &handler);
  if (status == UCS_OK) return {};
  return internal_error(std::string("UCX message handler: ") + ucs_status_string(status));
}

UcxTransport::~UcxTransport() {
  CGX_ASSERT(!in_progress_);
  std::vector<PeerId> peers;
  links_.for_each([&](PeerId peer, Link&) { peers.push_back(peer); });
  for (const PeerId peer : peers) close(peer);
  for (int round = 0; (flushing_ || !closed_.empty()) && round < kFinalRounds; ++round) {
    ucp_worker_progress(ucx_.worker.get());
    release_closed();
  }
  ucx_.worker.reset();  // while what its callbacks touch still exists
}

Result<Endpoint> UcxTransport::local_endpoint() {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(ucx_.worker.get(), &address, &bytes);
  if (status != UCS_OK) {
    return internal_error(std::string("UCX worker address: ") + ucs_status_string(status));
  }
  Endpoint endpoint{.address = pack_address(ports_, address, bytes), .settings = settings_};
  ucp_worker_release_address(ucx_.worker.get(), address);
  return endpoint;
}

Result<PeerId> UcxTransport::connect(const ConnectOptions& options) {
  if (Status same = compare_ucx_settings(settings_, options.remote.settings); !same.ok()) {
    return Status(same.code(), options.name + ": " + same.message());
  }
  if (by_tag_.contains(options.inbound_tag)) {
    return Status(StatusCode::kALREADY_EXISTS, options.name + ": inbound tag is in use");
  }
  CGX_ASSIGN_OR_RETURN(RemoteAddress remote, unpack_address(options.remote.address));
  auto link = std::make_unique<Link>();
  link->transport = this;
  link->name = options.name;
  link->inbound_tag = options.inbound_tag;
  link->outbound_tag = options.outbound_tag;
  link->remote = std::move(remote);
  CGX_RETURN_IF_ERROR(open_endpoint(*link));
  if (Status lanes = check_ucx_lanes(options_, link->endpoint); !lanes.ok()) {
    release_endpoint(*link, true);
    closed_.push_back(std::move(link));
    return Status(lanes.code(), options.name + ": " + lanes.message());
  }
  Link* raw = link.get();
  raw->id = links_.add(std::move(link));
  by_tag_[raw->inbound_tag] = raw;
  return raw->id;
}

Status UcxTransport::open_endpoint(Link& link) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(link.remote.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::on_failure;
  params.err_handler.arg = &link;
  const ucs_status_t status = ucp_ep_create(ucx_.worker.get(), &params, &link.endpoint);
  if (status == UCS_OK) return {};
  return {StatusCode::kUNAVAILABLE, link.name + ": no UCX endpoint: " + ucs_status_string(status)};
}

void UcxTransport::close(PeerId peer) {
  std::unique_ptr<Link> link = links_.remove(peer);
  if (!link) return;
  link->closed_here = true;
  by_tag_.erase(link->inbound_tag);
  std::erase(failed_, peer);
  closed_.push_back(std::move(link));
  if (!in_progress_) release_closed();  // UCX endpoints do not survive being closed in a callback
}

Status UcxTransport::send(PeerId to, const Frame& frame, SendToken token) {
  Link* link = links_.find(to);
  if (!link) return {StatusCode::kNOT_FOUND, "send to a peer that is not connected"};
  if (!link->down.ok()) return link->down;
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));

  Sending& sending = take_sending();
  sending.link = link;
  sending.token = token;
  sending.bytes = frame.header.size() + frame.payload.size();
  std::memcpy(sending.header, &link->outbound_tag, kTagBytes);
  if (!frame.header.empty()) {
    std::memcpy(sending.header + kTagBytes, frame.header.data(), frame.header.size());
  }
  ++link->in_flight;
  ucs_status_ptr_t request =
      start(link->endpoint, kFrame, sending, kTagBytes + frame.header.size(), frame.payload);
  if (UCS_PTR_IS_PTR(request)) return {};
  if (request == nullptr) {
    finish(sending, UCS_OK);
    return {};
  }
  --link->in_flight;
  free_sendings_.push_back(&sending);
  return status_of(*link, UCS_PTR_STATUS(request));
}

ucs_status_ptr_t UcxTransport::start(ucp_ep_h endpoint, unsigned message, Sending& sending,
                                     size_t header_bytes, std::span<const std::byte> payload) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxTransport::on_send_done;
  param.user_data = &sending;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return ucp_am_send_nbx(endpoint, message, sending.header, header_bytes, payload.data(),
                         payload.size(), &param);
}

UcxTransport::Sending& UcxTransport::take_sending() {
  if (free_sendings_.empty()) {
    sendings_.emplace_back().transport = this;
    return sendings_.back();
  }
  Sending* sending = free_sendings_.back();
  free_sendings_.pop_back();
  return *sending;
}

void UcxTransport::on_send_done(void* request, ucs_status_t status, void* sending) {
  Sending& done = *static_cast<Sending*>(sending);
  done.transport->finish(done, status);
  ucp_request_free(request);
}

// UCX is done with a frame's memory. on_sent follows from progress().
void UcxTransport::finish(Sending& sending, ucs_status_t status) {
  free_sendings_.push_back(&sending);
  if (!sending.link) return;  // a goodbye
  Link& link = *sending.link;
  --link.in_flight;
  if (status == UCS_OK) {
    totals_.frames_sent += 1;
    totals_.bytes_sent += sending.bytes;
    if (!link.sent_once) first_frame(link.sent_once, link);
  }
  if (sending.token == kNoToken) return;
  completions_.push_back(
      {link.id, sending.token, status == UCS_OK ? Status() : status_of(link, status)});
}

Status UcxTransport::status_of(const Link& link, ucs_status_t status) const {
  if (link.closed_here) return {StatusCode::kCANCELLED, link.name + ": closed here"};
  if (!link.down.ok()) return link.down;
  return {StatusCode::kPEER_LOST, link.name + ": " + ucs_status_string(status)};
}

ucs_status_t UcxTransport::on_frame_message(void* self, const void* header, size_t header_bytes,
                                            void* payload, size_t payload_bytes,
                                            const ucp_am_recv_param_t* param) {
  auto& transport = *static_cast<UcxTransport*>(self);
  if (header_bytes < kTagBytes || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    transport.totals_.frames_dropped += 1;
    return UCS_OK;
  }
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) {
    transport.totals_.bytes_copied += payload_bytes;
  }
  uint64_t tag = 0;
  std::memcpy(&tag, header, kTagBytes);
  const auto* bytes = static_cast<const std::byte*>(header);
  transport.receive(tag, {.header = {bytes + kTagBytes, header_bytes - kTagBytes},
                          .payload = {static_cast<const std::byte*>(payload), payload_bytes}});
  return UCS_OK;
}

ucs_status_t UcxTransport::on_goodbye_message(void* self, const void* header, size_t header_bytes,
                                              void*, size_t, const ucp_am_recv_param_t*) {
  auto& transport = *static_cast<UcxTransport*>(self);
  uint64_t tag = 0;
  if (header_bytes != kTagBytes) return UCS_OK;
  std::memcpy(&tag, header, kTagBytes);
  if (Link* link = transport.find_tag(tag)) transport.lose(*link, "closed by the peer");
  return UCS_OK;
}

UcxTransport::Link* UcxTransport::find_tag(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  return found != by_tag_.end() && found->second->down.ok() ? found->second : nullptr;
}

void UcxTransport::receive(uint64_t tag, const Frame& frame) {
  Link* link = find_tag(tag);
  if (!link) {
    totals_.frames_dropped += 1;
    return;
  }
  totals_.frames_received += 1;
  totals_.bytes_received += frame.header.size() + frame.payload.size();
  if (!link->received_once) first_frame(link->received_once, *link);
  events_.on_frame(link->id, frame);
}

// By now UCX has made the link's sockets; later ones would be a new link.
void UcxTransport::first_frame(bool& done_before, const Link& link) {
  done_before = true;
  if (options_.congestion.empty()) return;
  // The listener took the algorithm when the transport opened, so this cannot fail for good.
  (void)set_congestion(options_.congestion, ports_, link.remote.ports);
}

void UcxTransport::on_failure(void* link, ucp_ep_h, ucs_status_t status) {
  Link& failed = *static_cast<Link*>(link);
  if (failed.closed_here || !failed.down.ok()) return;
  failed.transport->lose(failed, ucs_status_string(status));
}

void UcxTransport::lose(Link& link, const std::string& why) {
  link.down = {StatusCode::kPEER_LOST, link.name + ": " + why};
  failed_.push_back(link.id);
}

// A closed link: tell the peer, then let UCX finish. With frames under way their stream is cut in
// the middle, so the goodbye takes a connection of its own.
void UcxTransport::end_link(Link& link) {
  if (!link.endpoint) return;
  const bool lost = !link.down.ok();
  if (lost || link.in_flight > 0) {
    release_endpoint(link, true);
    if (lost || !open_endpoint(link).ok()) return;
  }
  say_goodbye(link);
  release_endpoint(link, false);
}

void UcxTransport::say_goodbye(const Link& link) {
  Sending& sending = take_sending();
  sending.link = nullptr;
  std::memcpy(sending.header, &link.outbound_tag, kTagBytes);
  ucs_status_ptr_t request = start(link.endpoint, kGoodbye, sending, kTagBytes, {});
  if (!UCS_PTR_IS_PTR(request)) free_sendings_.push_back(&sending);
}

// Flushing waits for the peer to acknowledge, so it ends in some later progress(), or never.
void UcxTransport::release_endpoint(Link& link, bool force) {
  if (!link.endpoint) return;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  param.cb.send = [](void*, ucs_status_t, void* self) {
    --static_cast<UcxTransport*>(self)->flushing_;
  };
  param.user_data = this;
  ++flushing_;
  ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(link.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) {
    ucp_request_free(request);  // UCX completes it first
  } else {
    --flushing_;
  }
}

void UcxTransport::release_closed() {
  std::erase_if(closed_, [&](const std::unique_ptr<Link>& link) {
    end_link(*link);
    return link->in_flight == 0;
  });
}

int UcxTransport::progress() {
  CGX_ASSERT(!in_progress_);
  in_progress_ = true;
  int work = static_cast<int>(ucp_worker_progress(ucx_.worker.get()));
  work += report_completions();
  if (!failed_.empty()) work += report_failures();
  if (!closed_.empty()) release_closed();
  in_progress_ = false;
  return work;
}

int UcxTransport::report_completions() {
  if (completions_.empty()) return 0;
  std::swap(completions_, reporting_);
  for (const Completion& done : reporting_) events_.on_sent(done.peer, done.token, done.status);
  const int count = static_cast<int>(reporting_.size());
  reporting_.clear();
  return count;
}

int UcxTransport::report_failures() {
  int count = 0;
  for (const PeerId peer : std::vector<PeerId>(failed_)) {
    Link* link = links_.find(peer);
    if (!link) continue;
    release_endpoint(*link, true);
    const bool unreported = std::any_of(completions_.begin(), completions_.end(),
                                        [&](const auto& done) { return done.peer == peer; });
    if (link->in_flight > 0 || unreported) continue;
    std::erase(failed_, peer);
    events_.on_peer_down(peer, Status(link->down));
    ++count;
  }
  return count;
}

bool UcxTransport::arm() {
  if (!completions_.empty() || !failed_.empty()) return false;
  if (!closed_.empty()) return false;  // cut with sends in flight: no event tells their end
  return ucp_worker_arm(ucx_.worker.get()) == UCS_OK;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options, Events& events) {
  const std::set<int> before = listening_sockets();
  CGX_ASSIGN_OR_RETURN(UcxContext ucx, make_ucx_context(options));
  std::set<int> opened = listening_sockets();
  for (const int socket : before) opened.erase(socket);
  auto transport =
      std::make_unique<UcxTransport>(std::move(ucx), options, ports_of(opened), events);
  CGX_RETURN_IF_ERROR(transport->open());
  return Result<std::unique_ptr<Transport>>(std::move(transport));
}

}  // namespace cgx::transport
