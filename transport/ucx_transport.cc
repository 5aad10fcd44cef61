#include "transport/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cgx::transport {
namespace {

constexpr int kFinalRounds = 1000;  // of progress when the transport ends

}  // namespace

UcxTransport::UcxTransport(UcxContext ucx, UcxOptions options, const std::set<int>& listening,
                           Events& events)
    : options_(std::move(options)),
      settings_(ucx_settings(options_)),
      doors_(listening.begin(), listening.end()),
      listening_(addresses_of(listening)),
      events_(events),
      ucx_(std::move(ucx)) {}

Status UcxTransport::open() {
  CGX_RETURN_IF_ERROR(handle(kFrameId, &UcxTransport::on_frame_message));
  CGX_RETURN_IF_ERROR(handle(kControlId, &UcxTransport::on_control_message));
  return set_socket_options({options_.congestion, options_.stalled_ms}, listening_, {});
}

Status UcxTransport::handle(unsigned id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = id;
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
  const auto busy = [&] { return saying_goodbye_ > 0 || !closed_.empty() || !settled_; };
  for (int round = 0; busy() && round < kFinalRounds; ++round) {
    settled_ |= ucp_worker_progress(ucx_.worker.get()) == 0;
    release_closed();
  }
  ucx_.worker.reset();  // while what its callbacks touch still exists
}

Caps UcxTransport::caps() const {
  return {.header_bytes_max = kUcxHeaderBytesMax,
          .frame_bytes_max = kFrameBytesMax,
          .frame_bytes_best = options_.frame_bytes,
          .network = true};
}

Status UcxTransport::send(PeerId to, const Frame& frame, SendToken token) {
  Link* link = links_.find(to);
  if (!link) return {StatusCode::kNOT_FOUND, "send to a peer that is not connected"};
  if (!link->down.ok()) return link->down;
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));

  Sending& sending = take_sending(link, Message::kFrame, link->outbound_tag);
  sending.token = token;
  sending.bytes = frame.header.size() + frame.payload.size();
  std::memcpy(sending.header + kTagBytes, &link->next_out, sizeof link->next_out);
  if (!frame.header.empty()) {
    std::memcpy(sending.header + kPrefixBytes, frame.header.data(), frame.header.size());
  }
  ++link->next_out;
  ++link->in_flight;
  ucs_status_ptr_t request =
      start(link->connection->endpoint, sending, kPrefixBytes + frame.header.size(), frame.payload);
  if (UCS_PTR_IS_PTR(request)) return {};
  if (request == nullptr) {
    finish(sending, UCS_OK);
    return {};
  }
  --link->next_out;
  --link->in_flight;
  free_sendings_.push_back(&sending);
  return status_of(*link, UCS_PTR_STATUS(request));
}

UcxTransport::Sending& UcxTransport::take_sending(Link* link, Message message, uint64_t tag) {
  Sending* sending = nullptr;
  if (free_sendings_.empty()) {
    sending = &sendings_.emplace_back();
    sending->transport = this;
  } else {
    sending = free_sendings_.back();
    free_sendings_.pop_back();
  }
  sending->link = link;
  sending->message = message;
  sending->token = kNoToken;
  std::memcpy(sending->header, &tag, kTagBytes);
  return *sending;
}

ucs_status_ptr_t UcxTransport::start(ucp_ep_h endpoint, Sending& sending, size_t header_bytes,
                                     std::span<const std::byte> payload) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxTransport::on_send_done;
  param.user_data = &sending;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const unsigned id = sending.message == Message::kFrame ? kFrameId : kControlId;
  return ucp_am_send_nbx(endpoint, id, sending.header, header_bytes, payload.data(), payload.size(),
                         &param);
}

void UcxTransport::on_send_done(void* request, ucs_status_t status, void* sending) {
  Sending& done = *static_cast<Sending*>(sending);
  done.transport->finish(done, status);
  ucp_request_free(request);
}

// UCX is done with a message's memory. on_sent follows from progress().
void UcxTransport::finish(Sending& sending, ucs_status_t status) {
  free_sendings_.push_back(&sending);
  if (!sending.link) {
    --saying_goodbye_;
    return;
  }
  Link& link = *sending.link;
  --link.in_flight;
  if (sending.message == Message::kHello) {
    link.connection->connecting = false;
    if (status == UCS_OK) set_up(*link.connection);
    return;
  }
  if (status == UCS_OK) {
    totals_.frames_sent += 1;
    totals_.bytes_sent += sending.bytes;
  }
  if (sending.token == kNoToken) return;
  const bool ok = status == UCS_OK && !link.closed_here;
  completions_.add(link.id, sending.token, ok ? Status() : status_of(link, status));
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
  if (header_bytes < kPrefixBytes || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    transport.totals_.frames_dropped += 1;
    return UCS_OK;
  }
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) {
    transport.totals_.bytes_copied += payload_bytes;
  }
  uint64_t tag = 0;
  uint32_t number = 0;
  const auto* bytes = static_cast<const std::byte*>(header);
  std::memcpy(&tag, bytes, kTagBytes);
  std::memcpy(&number, bytes + kTagBytes, sizeof number);
  transport.receive(tag, number,
                    {.header = {bytes + kPrefixBytes, header_bytes - kPrefixBytes},
                     .payload = {static_cast<const std::byte*>(payload), payload_bytes}});
  return UCS_OK;
}

// UCX promises no order. On one lane it keeps it; should it ever not, the link goes down by name.
void UcxTransport::receive(uint64_t tag, uint32_t number, const Frame& frame) {
  Link* link = find_tag(tag);
  if (link && number != link->next_in) {
    lose(*link, "UCX delivered frame " + std::to_string(number) + " where " +
                    std::to_string(link->next_in) + " was due");
    link = nullptr;
  }
  if (!link) {
    totals_.frames_dropped += 1;
    return;
  }
  ++link->next_in;
  totals_.frames_received += 1;
  totals_.bytes_received += frame.header.size() + frame.payload.size();
  events_.on_frame(link->id, frame);
}

int UcxTransport::progress() {
  CGX_ASSERT(!in_progress_);
  in_progress_ = true;
  int work = static_cast<int>(ucp_worker_progress(ucx_.worker.get()));
  settled_ |= work == 0;
  work += completions_.report(events_);
  if (!failed_.empty()) work += report_failures();
  if (!closed_.empty()) release_closed();
  if (connection_failed_) drop_failed_connections();
  in_progress_ = false;
  return work;
}

bool UcxTransport::arm() {
  if (!completions_.empty() || !failed_.empty()) return false;
  // UCX ends cancelled sends and closed endpoints in progress(), without an event.
  if (!settled_ || connection_failed_) return false;
  return ucp_worker_arm(ucx_.worker.get()) == UCS_OK;
}

}  // namespace cgx::transport
