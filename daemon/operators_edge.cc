#include "daemon/operators_edge.h"

#include <sys/socket.h>

#include "daemon/base/clock.h"
#include "daemon/net/groups.h"
#include "daemon/options.h"

namespace cgx::daemon {
namespace {

// Who may see and change what is decided by who asks (identify_peer), not by who owns the socket.
Result<ListenSocketOptions> socket_options(const v1::ControlPort& config) {
  ListenSocketOptions options;
  options.path = config.socket();
  options.type = SOCK_STREAM;
  CGX_ASSIGN_OR_RETURN(options.mode, socket_mode(config.socket_mode()));
  options.group_key = "control.socket_group";
  CGX_ASSIGN_OR_RETURN(options.group, find_group(options.group_key, config.socket_group()));
  return options;
}

LogLevel log_level(scheduler::EventLevel level) {
  switch (level) {
    case scheduler::EventLevel::kInfo:
      return LogLevel::kInfo;
    case scheduler::EventLevel::kWarning:
      return LogLevel::kWarning;
    case scheduler::EventLevel::kError:
      return LogLevel::kError;
  }
  return LogLevel::kError;
}

}  // namespace

Result<std::unique_ptr<OperatorsEdge>> OperatorsEdge::open(const v1::Config& config,
                                                           const DaemonFacts& facts,
                                                           OperatorPort& port, Log& log, Look* look,
                                                           Fleet* fleet, const Calls& calls) {
  CGX_ASSIGN_OR_RETURN(const ListenSocketOptions socket, socket_options(config.control()));
  CGX_ASSIGN_OR_RETURN(ListenSocket listening, ListenSocket::open(socket));
  std::unique_ptr<OperatorsEdge> edge(new OperatorsEdge(std::move(listening)));
  CGX_ASSIGN_OR_RETURN(edge->audit_, AuditLog::open(config.control().audit_file(), log));
  ControlOptions control{.config = config.control(),
                         .unix_fd = edge->socket_.fd(),
                         .facts = facts,
                         .diagnose = {},
                         .fleet = {},
                         .on_junk = calls.on_junk,
                         .on_share = calls.on_share,
                         .stop = calls.stop,
                         .handshake_timeout_ns = config.timeouts().handshake_ms() * kMillisecond};
  if (look != nullptr) {
    control.diagnose = [look](const v1::DiagnoseRequest& request, bool for_operator,
                              const StillWaits& waits) {
      return look->diagnose(request, for_operator, waits);
    };
  }
  if (fleet != nullptr) {
    control.fleet = [fleet](const Snapshot& snapshot, const CommunicatorSnapshot& of,
                            const FleetQuestion& question) {
      return fleet->ask(snapshot, of, question);
    };
  }
  CGX_ASSIGN_OR_RETURN(edge->control_, ControlService::create(control, port, *edge->audit_, log));
  CGX_RETURN_IF_ERROR(edge->start_metrics(config.metrics(), facts, port, log, calls));
  return edge;
}

Status OperatorsEdge::start_metrics(const v1::Metrics& config, const DaemonFacts& facts,
                                    OperatorPort& port, Log& log, const Calls& calls) {
  if (config.port() == 0) return {};
  const MetricsOptions options{.address = config.address(),
                               .port = static_cast<uint16_t>(config.port()),
                               .job_names = config.job_names(),
                               .facts = facts,
                               .log_dropped = [&log] { return log.dropped(); },
                               .on_junk = calls.on_junk,
                               .on_share = calls.on_share};
  CGX_ASSIGN_OR_RETURN(metrics_, MetricsServer::create(options, port));
  return {};
}

void LogEvents::event(scheduler::EventLevel level, std::string_view text) {
  log_.write(log_level(level), text);
}

void LogEvents::note(scheduler::EventLevel level, std::string_view text,
                     std::span<const scheduler::EventField> fields) {
  std::vector<LogField> told;
  for (const scheduler::EventField& field : fields) {
    told.emplace_back(field.key, field.text);
    told.back().is_number = field.is_number;
  }
  log_.write(log_level(level), text, told);
}

LogSettings log_settings(const v1::LogOptions& config) {
  const Result<LogLevel> level = parse_log_level(config.level());
  const Result<LogFormat> format = parse_log_format(config.format());
  CGX_ASSERT(level.ok() && format.ok());
  return {.level = *level, .format = *format};
}

}  // namespace cgx::daemon
