#include "daemon/operators/control_service.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "daemon/net/guarded_listener.h"
#include "daemon/operators/control_calls.h"
#include "daemon/operators/tls_server.h"
#include "daemon/operators/user_servers.h"

namespace cgx::daemon {
namespace {

constexpr const char kHttp2Opening[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// gRPC's process-wide switches. Its own log and protobuf's go nowhere: strangers can make them
// talk, and what the daemon needs to know comes back as a status.
void set_up_grpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc_init();  // for the whole process: the last grpc_shutdown() may wait 10 s for its poller
    gpr_set_log_function([](gpr_log_func_args*) {});
    google::protobuf::SetLogHandler(nullptr);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

class ControlService::Edge {
 public:
  Edge(const ControlOptions& options, OperatorPort& port, AuditLog& audit, Log& log)
      : context_{.port = port,
                 .audit = audit,
                 .facts = options.facts,
                 .diagnose = options.diagnose,
                 .fleet = options.fleet,
                 .stop = options.stop},
        log_(log),
        servers_(context_, options.idle_ns) {}
  ~Edge() {
    listener_.reset();  // its thread uses servers_
  }

  Status start(const ControlOptions& options) {
    CGX_ASSIGN_OR_RETURN(operators_,
                         find_group("control.operators_group", options.config.operators_group()));
    if (!options.config.listen().empty()) {
      CGX_ASSIGN_OR_RETURN(
          tls_,
          TlsServer::create(
              options.config, context_,
              {.handshake_ns = options.handshake_timeout_ns, .idle_ns = options.idle_ns},
              {.on_connection = {}, .on_junk = options.on_junk, .on_share = options.on_share}));
    }
    const ListenerOptions listening{.name = "connections of cgxctl",
                                    .opening = kHttp2Opening,
                                    .opening_timeout_ns = options.handshake_timeout_ns};
    CGX_ASSIGN_OR_RETURN(
        listener_,
        GuardedListener::create(
            options.unix_fd, listening,
            {.on_connection = [this](UniqueFd fd, int peer) { serve(std::move(fd), peer); },
             .on_junk = options.on_junk,
             .on_share = options.on_share}));
    return {};
  }
  uint16_t tcp_port() const { return tls_ == nullptr ? 0 : tls_->port(); }

 private:
  void serve(UniqueFd fd, int peer) {
    const Result<Caller> caller = identify_peer(peer, operators_);
    const Status status = caller.ok() ? servers_.serve(std::move(fd), *caller) : caller.status();
    if (!status.ok()) log_.write(LogLevel::kWarning, "control: " + status.message());
  }

  const ControlContext context_;
  Log& log_;
  gid_t operators_ = kNoGroup;
  UserServers servers_;
  std::unique_ptr<TlsServer> tls_;
  std::unique_ptr<GuardedListener> listener_;
};

Result<std::unique_ptr<ControlService>> ControlService::create(const ControlOptions& options,
                                                               OperatorPort& port, AuditLog& audit,
                                                               Log& log) {
  CGX_ASSERT(options.unix_fd >= 0 && options.on_junk);
  set_up_grpc();
  auto edge = std::make_unique<Edge>(options, port, audit, log);
  CGX_RETURN_IF_ERROR(edge->start(options));
  return std::unique_ptr<ControlService>(new ControlService(std::move(edge)));
}

ControlService::ControlService(std::unique_ptr<Edge> edge) : edge_(std::move(edge)) {}
ControlService::~ControlService() = default;

uint16_t ControlService::tcp_port() const {
  return edge_->tcp_port();
}

}  // namespace cgx::daemon
