// HTTP for machines and eyes: /metrics, /healthz, a status page at / and what it draws at
// /status.json. Read-only, plain HTTP, meant for loopback: whoever reaches it sees every job's
// figures. Thread rule: create and destroy on one thread; requests run on one of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/operators/control_view.h"
#include "daemon/operators/operator_port.h"
#include "proto/wire/status.h"

namespace cgx::daemon {

struct MetricsOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;       // 0: any free port
  bool job_names = false;  // else concealed()
  DaemonFacts facts;
  std::function<uint64_t()> log_dropped;
  std::function<void()> on_junk;  // a request that is not HTTP
  std::function<void(const scheduler::Share&)> on_share = {};
  uint64_t snapshot_timeout_ns = 1'000'000'000;
};

class MetricsServer {
 public:
  static Result<std::unique_ptr<MetricsServer>> create(const MetricsOptions& options,
                                                       OperatorPort& port);
  ~MetricsServer();
  uint16_t port() const;

 private:
  class Pages;
  explicit MetricsServer(std::unique_ptr<Pages> pages);
  std::unique_ptr<Pages> pages_;
};

}  // namespace cgx::daemon
