// The operators' edge: gRPC Control, health and reflection on a Unix socket and, by configuration,
// on TCP with mutual TLS.
//
// gRPC does not tell a handler whose Unix connection a call came on, so connections are accepted
// here and each user gets a gRPC server of their own: a call's rights follow from the server it
// reached. Connections that do not speak HTTP/2 (or TLS on TCP) never reach gRPC; they are counted.
// Thread rule: create and destroy on one thread; the work runs on its own and gRPC's threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/base/stop_order.h"
#include "daemon/operators/audit.h"
#include "daemon/operators/caller.h"
#include "daemon/operators/control_view.h"
#include "daemon/operators/operator_port.h"
#include "proto/messages/config.pb.h"
#include "proto/wire/status.h"

namespace cgx::daemon {

struct ControlOptions {
  v1::ControlPort config;  // complete; `socket` is opened by the caller, the rest is used here
  int unix_fd = -1;        // a listening stream socket, kept open by the caller
  DaemonFacts facts;
  Diagnose diagnose;              // empty: this daemon serves one machine only
  AskFleet fleet;                 // likewise
  std::function<void()> on_junk;  // called on the control thread
  std::function<void(const scheduler::Share&)> on_share = {};  // likewise; may be empty
  StopPort* stop = nullptr;                                    // null: nobody may
  uint64_t handshake_timeout_ns = 2'000'000'000;
  uint64_t idle_ns = 300'000'000'000;  // how long a connection may be without a call
};

class ControlService {
 public:
  static Result<std::unique_ptr<ControlService>> create(const ControlOptions& options,
                                                        OperatorPort& port, AuditLog& audit,
                                                        Log& log);
  // Refuses new calls, gives running ones a moment, then cuts them.
  ~ControlService();

  uint16_t tcp_port() const;  // 0: TCP is off

 private:
  class Edge;
  explicit ControlService(std::unique_ptr<Edge> edge);
  std::unique_ptr<Edge> edge_;
};

}  // namespace cgx::daemon
