#include "daemon/operators/tls_server.h"

#include <grpcpp/security/server_credentials.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "daemon/operators/user_servers.h"

namespace cgx::daemon {
namespace {

constexpr size_t kRecordHead = 5;
constexpr size_t kHelloBytesMax = 4096;  // of a client's first record
constexpr uint32_t kAlivePerHostMax = 64;

// A handshake record of any TLS version, all of it: gRPC waits for nobody who has said less.
Opening judge(std::string_view seen) {
  constexpr std::string_view kTlsOpening = "\x16\x03";
  const size_t common = std::min(kTlsOpening.size(), seen.size());
  if (seen.substr(0, common) != kTlsOpening.substr(0, common)) return Opening::kWrong;
  if (seen.size() < kRecordHead) return Opening::kIncomplete;
  const size_t bytes = size_t{static_cast<uint8_t>(seen[3])} << 8 | static_cast<uint8_t>(seen[4]);
  return seen.size() < kRecordHead + bytes ? Opening::kIncomplete : Opening::kRight;
}

Result<std::string> read_pem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || text.find("-----BEGIN") == std::string::npos) {
    return invalid_argument("control.tls: " + path + " cannot be read or is not a PEM file");
  }
  return text;
}

Result<std::shared_ptr<grpc::ServerCredentials>> credentials(const v1::Tls& tls) {
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  CGX_ASSIGN_OR_RETURN(options.pem_root_certs, read_pem(tls.ca_file()));
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  CGX_ASSIGN_OR_RETURN(pair.private_key, read_pem(tls.key_file()));
  CGX_ASSIGN_OR_RETURN(pair.cert_chain, read_pem(tls.certificate_file()));
  options.pem_key_cert_pairs.push_back(pair);
  return grpc::SslServerCredentials(options);
}

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

Result<UniqueFd> listen_tcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  AddressList list;
  const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list.first);
  if (error != 0) {
    return invalid_argument("control.listen: " + address + ": " + ::gai_strerror(error));
  }
  const addrinfo& chosen = *list.first;
  UniqueFd fd(::socket(chosen.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), chosen.ai_addr, chosen.ai_addrlen) != 0 || ::listen(fd.get(), 64) != 0) {
    return errno_status(StatusCode::kUNAVAILABLE, "control.listen: cannot listen on " + address);
  }
  return fd;
}

uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  char port[8] = "0";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, nullptr, 0, port, sizeof port,
                NI_NUMERICSERV);
  return static_cast<uint16_t>(std::stoul(port));
}

// Any name of the certificate may be the one the configuration lists.
Caller identify_certificate(const grpc::ServerContext& context, const v1::ControlPort& config) {
  Caller caller{.name = "certificate without a name"};
  const auto identities = context.auth_context()->GetPeerIdentity();
  for (size_t i = 0; i < identities.size(); ++i) {
    const std::string name(identities[i].data(), identities[i].size());
    const auto& operators = config.operators();
    const bool listed = std::find(operators.begin(), operators.end(), name) != operators.end();
    if (i == 0 || listed) caller.name = "certificate " + name;
    if (listed) {
      caller.is_operator = true;
      break;
    }
  }
  return caller;
}

}  // namespace

Result<std::unique_ptr<TlsServer>> TlsServer::create(const v1::ControlPort& config,
                                                     const ControlContext& context,
                                                     const TlsTimes& times, ListenerEvents events) {
  CGX_ASSIGN_OR_RETURN(const auto certificates, credentials(config.tls()));
  CGX_ASSIGN_OR_RETURN(UniqueFd listening, listen_tcp(config.listen()));
  std::unique_ptr<TlsServer> tls(new TlsServer(std::move(listening)));
  tls->port_ = bound_port(tls->listening_.get());
  tls->calls_ = std::make_unique<ControlCalls>(context, [config](const grpc::ServerContext& call) {
    return identify_certificate(call, config);
  });

  grpc::ServerBuilder builder;
  apply_limits(builder, times.idle_ns);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(times.handshake_ns / 1'000'000));
  builder.RegisterService(tls->calls_.get());
  tls->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, certificates);
  tls->server_ = builder.BuildAndStart();
  if (tls->server_ == nullptr) return internal_error("gRPC refused to start the TLS server");

  auto* acceptor = tls->acceptor_.get();
  const int listening_fd = tls->listening_.get();
  events.on_connection = [acceptor, listening_fd](UniqueFd fd, int) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listening_fd;
    connection.fd = fd.release();
    acceptor->HandleNewConnection(&connection);
  };
  CGX_ASSIGN_OR_RETURN(tls->listener_,
                       GuardedListener::create(listening_fd,
                                               {.name = "connections of cgxctl over TLS",
                                                .opening = {},
                                                .judge = judge,
                                                .judged_bytes = kHelloBytesMax,
                                                .opening_timeout_ns = times.handshake_ns,
                                                .alive_per_host_max = kAlivePerHostMax},
                                               events));
  return tls;
}

TlsServer::~TlsServer() {
  listener_.reset();
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }
}

}  // namespace cgx::daemon
