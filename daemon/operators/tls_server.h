// The control service over TCP: mutual TLS always, rights by the client certificate's names.
// Thread rule: create and destroy on one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "daemon/net/guarded_listener.h"
#include "daemon/operators/control_calls.h"
#include "proto/messages/config.pb.h"

namespace cgx::daemon {

struct TlsTimes {
  uint64_t handshake_ns = 0;
  uint64_t idle_ns = 0;  // a connection without a call
};

class TlsServer {
 public:
  // REQUIRES: config.listen() and all files of config.tls() are set. `events.on_connection` is
  // ours.
  static Result<std::unique_ptr<TlsServer>> create(const v1::ControlPort& config,
                                                   const ControlContext& context,
                                                   const TlsTimes& times, ListenerEvents events);
  ~TlsServer();
  uint16_t port() const { return port_; }

 private:
  explicit TlsServer(UniqueFd listening) : listening_(std::move(listening)) {}

  UniqueFd listening_;
  uint16_t port_ = 0;
  std::unique_ptr<ControlCalls> calls_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GuardedListener> listener_;
};

}  // namespace cgx::daemon
