// The connections under the links: UCX's endpoints, opened, used again, lost and cut.
//
// UCX 1.13.1 keeps the socket of an endpoint that was closed in order until its worker ends ("TODO
// negotiate disconnect"), drops it when forced, and pairs the endpoints of two workers by counting
// them in 16 bits. So endpoints are not closed while they work: the next link takes them.
#include <algorithm>

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

Status UcxTransport::take_connection(Link& link, std::span<const std::byte> address) {
  CGX_ASSIGN_OR_RETURN(Address remote, unpack(address));
  const auto free = std::find_if(connections_.begin(), connections_.end(), [&](const auto& known) {
    return !known->link && !known->draining && !known->failed && known->worker == remote.worker;
  });
  Connection* connection = free == connections_.end() ? nullptr : free->get();
  if (!connection) {
    auto opened = std::make_unique<Connection>();
    opened->transport = this;
    opened->worker = std::move(remote.worker);
    opened->sockets = std::move(remote.sockets);
    CGX_RETURN_IF_ERROR(open_endpoint(*opened, link.name));
    connection = connections_.emplace_back(std::move(opened)).get();
  }
  link.connection = connection;
  connection->link = &link;
  return {};
}

Status UcxTransport::open_endpoint(Connection& connection, const std::string& name) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(connection.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::on_failure;
  params.err_handler.arg = &connection;
  const ucs_status_t status = ucp_ep_create(ucx_.worker.get(), &params, &connection.endpoint);
  if (status != UCS_OK) {
    return {StatusCode::kUNAVAILABLE, name + ": no UCX endpoint: " + ucs_status_string(status)};
  }
  Status lanes = check_ucx_lanes(options_, connection.endpoint);
  if (lanes.ok()) return {};
  close_endpoint(connection);
  return {lanes.code(), name + ": " + lanes.message()};
}

// Seen from either end: by then UCX has made its sockets. The listener took the same options when
// the transport opened, so there is no new reason to fail.
void UcxTransport::set_up(Connection& connection) {
  if (std::exchange(connection.up, true)) return;
  (void)set_socket_options({options_.congestion, options_.stalled_ms}, listening_,
                           connection.sockets);
}

void UcxTransport::on_failure(void* connection, ucp_ep_h, ucs_status_t status) {
  Connection& failed = *static_cast<Connection*>(connection);
  failed.failed = failed.transport->connection_failed_ = true;
  if (failed.link && failed.link->down.ok()) {
    failed.transport->lose(*failed.link, ucs_status_string(status));
  }
}

// All connections to that peer. Where another one leads to the same host (several daemons on one
// machine), sockets accepted from there cannot be told apart and stay; the peer then learns from
// its own heartbeat.
void UcxTransport::cut(const Connection& connection) {
  const std::vector<std::byte> worker = connection.worker;
  for (const std::string& address : connection.sockets) {
    const std::string host = host_of(address);
    const bool shared = std::any_of(
        connections_.begin(), connections_.end(), [&](const std::unique_ptr<Connection>& other) {
          return other->worker != worker &&
                 std::any_of(other->sockets.begin(), other->sockets.end(),
                             [&](const auto& a) { return host_of(a) == host; });
        });
    cut_connections(listening_, {address}, shared ? std::string() : host);
  }
  for (const auto& each : connections_) {
    if (each->worker != worker) continue;
    each->failed = connection_failed_ = true;
    close_endpoint(*each);
  }
}

// Free for the next link when the peer's UCX has answered for all that this one sent: a connection
// that leads nowhere any more (a cut network, a stopped peer) is not used again.
void UcxTransport::give_back_connection(Link& link) {
  Connection& connection = *std::exchange(link.connection, nullptr);
  connection.link = nullptr;
  if (connection.failed) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = [](void* request, ucs_status_t, void* drained) {
    static_cast<Connection*>(drained)->draining = false;  // failed, if it has not
    ucp_request_free(request);
  };
  param.user_data = &connection;
  connection.draining = true;
  if (!UCS_PTR_IS_PTR(ucp_ep_flush_nbx(connection.endpoint, &param))) connection.draining = false;
}

// Only forced: what UCX still holds of it ends as cancelled.
void UcxTransport::close_endpoint(Connection& connection) {
  if (!connection.endpoint) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  settled_ = false;
  ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(connection.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);  // UCX completes it first
}

void UcxTransport::drop_failed_connections() {
  std::erase_if(connections_, [&](const std::unique_ptr<Connection>& connection) {
    if (!connection->failed) return false;
    close_endpoint(*connection);
    return !connection->link && !connection->draining;
  });
  connection_failed_ = std::any_of(connections_.begin(), connections_.end(),
                                   [](const auto& connection) { return connection->failed; });
}

}  // namespace cgx::transport
