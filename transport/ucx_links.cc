// The life of a link: connect, hello, loss, goodbye, and letting go of UCX's endpoint.
//
// UCX 1.13.1 over TCP tells a peer nothing when a link is closed: neither flushing nor forcing is
// heard there. So an orderly close ends with a goodbye in band, and one that leaves frames behind
// shuts the connection down.
#include <algorithm>
#include <cstring>

#include "transport/ucx_transport.h"

namespace cgx::transport {
namespace {

constexpr size_t kAddressBytesMax = 4096;

// Endpoint.address: u8 count, count times (u8 length, text of a listening socket's address), then
// UCX's worker address.
struct Address {
  SocketAddresses sockets;
  std::vector<std::byte> worker;
};

std::vector<std::byte> pack(const SocketAddresses& sockets, std::span<const std::byte> worker) {
  std::vector<std::byte> packed{static_cast<std::byte>(sockets.size())};
  for (const std::string& socket : sockets) {
    packed.push_back(static_cast<std::byte>(socket.size()));
    const auto bytes = std::as_bytes(std::span(socket));
    packed.insert(packed.end(), bytes.begin(), bytes.end());
  }
  packed.insert(packed.end(), worker.begin(), worker.end());
  return packed;
}

Result<Address> unpack(std::span<const std::byte> packed) {
  const Status malformed = invalid_argument("transport address of " +
                                            std::to_string(packed.size()) + " bytes is malformed");
  if (packed.empty() || packed.size() > kAddressBytesMax) return malformed;
  Address address;
  std::span<const std::byte> rest = packed.subspan(1);
  for (size_t left = static_cast<size_t>(packed[0]); left > 0; --left) {
    const size_t length = rest.empty() ? 0 : static_cast<size_t>(rest[0]);
    if (rest.size() <= length) return malformed;
    const auto* text = reinterpret_cast<const char*>(rest.data() + 1);
    address.sockets.emplace_back(text, length);
    rest = rest.subspan(1 + length);
  }
  if (rest.empty()) return malformed;
  address.worker.assign(rest.begin(), rest.end());
  return address;
}

}  // namespace

Result<Endpoint> UcxTransport::local_endpoint() {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(ucx_.worker.get(), &address, &bytes);
  if (status != UCS_OK) {
    return internal_error(std::string("UCX worker address: ") + ucs_status_string(status));
  }
  Endpoint endpoint{.address = pack(listening_, {reinterpret_cast<std::byte*>(address), bytes}),
                    .settings = settings_};
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
  CGX_ASSIGN_OR_RETURN(Address remote, unpack(options.remote.address));
  auto link = std::make_unique<Link>();
  link->transport = this;
  link->name = options.name;
  link->inbound_tag = options.inbound_tag;
  link->outbound_tag = options.outbound_tag;
  link->remote_sockets = std::move(remote.sockets);
  CGX_RETURN_IF_ERROR(open_endpoint(*link, remote.worker));
  if (Status lanes = check_ucx_lanes(options_, link->endpoint); !lanes.ok()) {
    release_endpoint(*link, true);
    return Status(lanes.code(), options.name + ": " + lanes.message());
  }
  Link& opened = *link;
  opened.id = links_.add(std::move(link));
  by_tag_[opened.inbound_tag] = &opened;
  send_control(opened, Message::kHello);
  return opened.id;
}

Status UcxTransport::open_endpoint(Link& link, std::span<const std::byte> worker_address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::on_failure;
  params.err_handler.arg = &link;
  const ucs_status_t status = ucp_ep_create(ucx_.worker.get(), &params, &link.endpoint);
  if (status == UCS_OK) return {};
  return {StatusCode::kUNAVAILABLE, link.name + ": no UCX endpoint: " + ucs_status_string(status)};
}

// Hello makes UCX connect at once and tells when it has. Goodbye is the last message of a link.
void UcxTransport::send_control(Link& link, Message message) {
  const bool hello = message == Message::kHello;
  Sending& sending = take_sending(hello ? &link : nullptr, message, link.outbound_tag);
  sending.header[kTagBytes] = static_cast<std::byte>(message);
  link.in_flight += hello;
  ucs_status_ptr_t request = start(link.endpoint, sending, kTagBytes + 1, {});
  if (!UCS_PTR_IS_PTR(request)) finish(sending, UCS_PTR_STATUS(request));
}

ucs_status_t UcxTransport::on_control_message(void* self, const void* header, size_t header_bytes,
                                              void*, size_t, const ucp_am_recv_param_t*) {
  auto& transport = *static_cast<UcxTransport*>(self);
  if (header_bytes != kTagBytes + 1) return UCS_OK;
  uint64_t tag = 0;
  std::memcpy(&tag, header, kTagBytes);
  Link* link = transport.find_tag(tag);
  if (!link) return UCS_OK;
  const uint8_t message = static_cast<const uint8_t*>(header)[kTagBytes];
  if (message == static_cast<uint8_t>(Message::kHello)) transport.set_options(*link);
  if (message == static_cast<uint8_t>(Message::kGoodbye)) {
    transport.lose(*link, "closed by the peer");
  }
  return UCS_OK;
}

UcxTransport::Link* UcxTransport::find_tag(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  return found != by_tag_.end() && found->second->down.ok() ? found->second : nullptr;
}

// When a link comes up, seen from either end: by then UCX has made its sockets. The listener took
// the same options when the transport opened, so there is no new reason to fail.
void UcxTransport::set_options(const Link& link) {
  (void)set_socket_options({options_.congestion, options_.stalled_ms}, listening_,
                           link.remote_sockets);
}

void UcxTransport::on_failure(void* link, ucp_ep_h, ucs_status_t status) {
  Link& failed = *static_cast<Link*>(link);
  if (failed.down.ok()) failed.transport->lose(failed, ucs_status_string(status));
}

void UcxTransport::lose(Link& link, const std::string& why) {
  link.down = {StatusCode::kPEER_LOST, link.name + ": " + why};
  if (!link.closed_here) failed_.push_back(link.id);
}

int UcxTransport::report_failures() {
  int count = 0;
  for (const PeerId peer : std::vector<PeerId>(failed_)) {
    Link* link = links_.find(peer);
    if (!link) continue;
    end_link(*link);
    if (link->in_flight > 0 || !is_reported(peer)) continue;
    std::erase(failed_, peer);
    events_.on_peer_down(peer, Status(link->down));
    ++count;
  }
  return count;
}

bool UcxTransport::is_reported(PeerId peer) const {
  return std::none_of(completions_.begin(), completions_.end(),
                      [&](const Completion& done) { return done.peer == peer; });
}

void UcxTransport::close(PeerId peer) {
  std::unique_ptr<Link> link = links_.remove(peer);
  if (!link) return;
  link->closed_here = true;
  by_tag_.erase(link->inbound_tag);
  std::erase(failed_, peer);
  closed_.push_back(std::move(link));
  if (!in_progress_) release_closed();
}

void UcxTransport::release_closed() {
  std::erase_if(closed_, [&](const std::unique_ptr<Link>& link) {
    end_link(*link);
    return !link->endpoint && link->in_flight == 0;
  });
}

void UcxTransport::end_link(Link& link) {
  if (!link.endpoint) return;
  const bool lost = !link.down.ok();
  if (!lost && link.in_flight == 0) send_control(link, Message::kGoodbye);
  if (!lost && link.in_flight > 0) cut(link);
  release_endpoint(link, lost || link.in_flight > 0);
}

// Where another link leads to the same host (several daemons on one machine), sockets accepted from
// there cannot be told apart and stay; the peer then learns from its own heartbeat.
void UcxTransport::cut(const Link& link) {
  for (const std::string& address : link.remote_sockets) {
    const std::string host = host_of(address);
    const auto is_there = [&](const Link& other) {
      return &other != &link &&
             std::any_of(other.remote_sockets.begin(), other.remote_sockets.end(),
                         [&](const auto& a) { return host_of(a) == host; });
    };
    bool shared = false;
    links_.for_each([&](PeerId, const Link& other) { shared |= is_there(other); });
    for (const auto& other : closed_) shared |= is_there(*other);
    cut_connections(listening_, {address}, shared ? std::string() : host);
  }
}

// Flushing waits for the peer to acknowledge, so it ends in some later progress(), or never.
void UcxTransport::release_endpoint(Link& link, bool force) {
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

}  // namespace cgx::transport
