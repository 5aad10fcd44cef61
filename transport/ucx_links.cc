// The life of a link: connect, hello, loss, goodbye.
//
// UCX 1.13.1 over TCP tells a peer nothing when an endpoint is closed, neither flushed nor forced.
// So a link ends with a goodbye in band, and its connection waits for the next link to that peer.
#include <cstring>

#include "transport/ucx_transport.h"

namespace cgx::transport {

// UCX closes a listener that could not accept for want of descriptors, and says nothing: a peer
// that dials it then aborts. Nobody links with a daemon that is deaf.
Status UcxTransport::fit() const {
  for (size_t i = 0; i < doors_.size(); ++i) {
    const std::string& address = listening_[i];
    if (is_listening(doors_[i]) && own_address(doors_[i]).text() == address) continue;
    return {StatusCode::kUNAVAILABLE,
            "UCX no longer listens at " + address +
                ": this daemon was out of descriptors; raise its limit (ulimit -n)"};
  }
  return {};
}

Result<PeerId> UcxTransport::connect(const ConnectOptions& options) {
  CGX_RETURN_IF_ERROR(fit());
  if (Status same = compare_ucx_settings(settings_, options.remote.settings); !same.ok()) {
    return Status(same.code(), options.name + ": " + same.message());
  }
  if (by_tag_.contains(options.inbound_tag)) {
    return Status(StatusCode::kALREADY_EXISTS, options.name + ": inbound tag is in use");
  }
  auto link = std::make_unique<Link>();
  link->transport = this;
  link->name = options.name;
  link->inbound_tag = options.inbound_tag;
  link->outbound_tag = options.outbound_tag;
  CGX_RETURN_IF_ERROR(take_connection(*link, options.remote.address));
  Link& opened = *link;
  opened.id = links_.add(std::move(link));
  by_tag_[opened.inbound_tag] = &opened;
  if (!opened.connection->up) send_control(opened, Message::kHello);
  return opened.id;
}

// Hello makes UCX connect at once and tells when it has; a connection that is up needs none.
// Goodbye is the last message of a link.
void UcxTransport::send_control(Link& link, Message message) {
  const bool hello = message == Message::kHello;
  Sending& sending = take_sending(hello ? &link : nullptr, message, link.outbound_tag);
  sending.header[kTagBytes] = static_cast<std::byte>(message);
  link.in_flight += hello;
  link.connection->connecting |= hello;
  saying_goodbye_ += !hello;
  ucs_status_ptr_t request = start(link.connection->endpoint, sending, kTagBytes + 1, {});
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
  if (message == static_cast<uint8_t>(Message::kHello)) transport.set_up(*link->connection);
  if (message == static_cast<uint8_t>(Message::kGoodbye)) {
    link->parted = true;
    transport.lose(*link, "closed by the peer");
  }
  return UCS_OK;
}

UcxTransport::Link* UcxTransport::find_tag(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  return found != by_tag_.end() && found->second->down.ok() ? found->second : nullptr;
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
    if (link->in_flight > 0 || completions_.has(peer)) continue;
    std::erase(failed_, peer);
    events_.on_peer_down(peer, Status(link->down));
    ++count;
  }
  return count;
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
    return !link->connection;
  });
}

// A link that is closed or lost parts with its connection. What it has sent goes out first, unless
// it is closed and nobody else talks to that peer: then the peer may be one that takes nothing any
// more, and the buffers are wanted back. For a hello alone nothing is cut: UCX 1.13.1 aborts when
// an endpoint that is still connecting fails at the wrong moment (ucp_request.c:684).
void UcxTransport::end_link(Link& link) {
  if (!link.connection) return;
  Connection& connection = *link.connection;
  if (connection.failed) {
    close_endpoint(connection);
  } else {
    if (!std::exchange(link.parted, true)) send_control(link, Message::kGoodbye);
    const bool frames = link.in_flight > (connection.connecting ? 1u : 0u);
    if (link.closed_here && frames && !leads_to(connection.worker)) cut(connection);
  }
  if (link.in_flight == 0) give_back_connection(link);
}

// Whether an open link uses a connection to `worker`.
bool UcxTransport::leads_to(std::span<const std::byte> worker) const {
  bool leads = false;
  links_.for_each([&](PeerId, const Link& link) {
    leads |= link.down.ok() && link.connection &&
             std::equal(worker.begin(), worker.end(), link.connection->worker.begin(),
                        link.connection->worker.end());
  });
  return leads;
}

}  // namespace cgx::transport
