// Everything operators reach, from the configuration: control socket, TCP, audit, metrics page.
// Thread rule: create and destroy on one thread (main), destroy before the engine's port.
#pragma once

#include <functional>
#include <memory>

#include "daemon/base/stop_order.h"
#include "daemon/fleet/fleet.h"
#include "daemon/fleet/look.h"
#include "daemon/net/listen_socket.h"
#include "daemon/operators/audit.h"
#include "daemon/operators/control_service.h"
#include "daemon/operators/metrics_server.h"
#include "proto/messages/config.pb.h"
#include "scheduler/engine/engine.h"

namespace cgx::daemon {

class OperatorsEdge {
 public:
  struct Calls {  // from other threads
    std::function<void()> on_junk;
    std::function<void(const scheduler::Share&)> on_share;
    StopPort* stop = nullptr;
  };
  // `config` is complete and its paths resolved. `look` and `fleet` may be null.
  static Result<std::unique_ptr<OperatorsEdge>> open(const v1::Config& config,
                                                     const DaemonFacts& facts, OperatorPort& port,
                                                     Log& log, Look* look, Fleet* fleet,
                                                     const Calls& calls);
  AuditLog& audit() { return *audit_; }

 private:
  explicit OperatorsEdge(ListenSocket socket) : socket_(std::move(socket)) {}
  Status start_metrics(const v1::Metrics& config, const DaemonFacts& facts, OperatorPort& port,
                       Log& log, const Calls& calls);

  ListenSocket socket_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<MetricsServer> metrics_;
};

// The engine's events as log lines.
class LogEvents final : public scheduler::EventSink {
 public:
  explicit LogEvents(Log& log) : log_(log) {}
  void event(scheduler::EventLevel level, std::string_view text) override;
  void note(scheduler::EventLevel level, std::string_view text,
            std::span<const scheduler::EventField> fields) override;

 private:
  Log& log_;
};

// REQUIRES: `config` passed config::check().
LogSettings log_settings(const v1::LogOptions& config);

}  // namespace cgx::daemon
