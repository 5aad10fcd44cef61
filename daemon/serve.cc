#include "daemon/serve.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "daemon/base/clock.h"
#include "daemon/ending.h"
#include "daemon/net/listen_socket.h"
#include "daemon/notify.h"
#include "daemon/operators_edge.h"
#include "daemon/options.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kLookNs = 100 * kMillisecond;    // how often main looks whether it should end
constexpr uint64_t kPrivateFirstNs = 60 * kSecond;  // a private daemon nobody ever came to
constexpr uint64_t kPrivateLingerNs = 2 * kSecond;  // a client may close and come again

constexpr uint64_t kSeldomNs = 60 * kSecond;  // without another reason: are its sockets there?

bool asks_to_stop(const siginfo_t& signal) {
  const int number = signal.si_signo;
  return number == SIGTERM || number == SIGINT || number == SIGQUIT;
}

std::string sender_text(const siginfo_t& signal) {
  const std::string name = ::sigabbrev_np(signal.si_signo);
  if (signal.si_code > 0) return "SIG" + name + " of the kernel";
  return "SIG" + name + " of process " + std::to_string(signal.si_pid) + ", uid " +
         std::to_string(signal.si_uid);
}

// When a private daemon should end. Two looks: a client that closes may be about to come again.
class PrivateLife {
 public:
  explicit PrivateLife(uint64_t drain_ms) : drain_ns_(drain_ms * kMillisecond) {}

  bool over(Daemon& daemon) {
    const uint64_t now = monotonic_ns();
    if (daemon.connected()) idle_since_ns_ = now;
    const uint64_t limit = daemon.sessions_ever() > 0 ? kPrivateLingerNs : kPrivateFirstNs;
    if (now - idle_since_ns_ >= limit && now - idle_since_ns_ < limit + drain_ns_) {
      const auto owed = daemon.last_frames();  // who comes while these leave is still served
      if (owed && !owed->empty()) return false;
    }
    if (now - idle_since_ns_ >= limit) daemon.stop_accepting();
    // Who was let in just before is served to the end.
    return now - idle_since_ns_ >= limit + kLookNs;
  }

 private:
  const uint64_t drain_ns_;
  uint64_t idle_since_ns_ = monotonic_ns();
};

// Tells the service manager that the thread which moves gradients goes on; without it the manager
// ends and restarts the daemon.
class Watchdog {
 public:
  explicit Watchdog(Log& log) : log_(log), period_ns_(watchdog_ns() / 3) {}
  uint64_t next_look_ns() const { return period_ns_ == 0 ? kSeldomNs : period_ns_; }

  void look(Daemon& daemon) {
    if (period_ns_ == 0) return;
    if (daemon.alive(period_ns_)) return notify_manager("WATCHDOG=1");
    log_.write(LogLevel::kError, "the data thread does not answer",
               {{"waited_ms", period_ns_ / kMillisecond}});
  }

 private:
  Log& log_;
  const uint64_t period_ns_;
};

// Says so once when nobody finds this daemon any more: a cleaner of /tmp has removed its sockets,
// or another daemon has their places.
class Findable {
 public:
  Findable(Log& log, const v1::Config& config) : log_(log) {
    for (const std::string& path : {config.client().socket(), config.control().socket()}) {
      sockets_.emplace_back(path, file_at(path));
    }
  }

  void look() {
    std::erase_if(sockets_, [&](const auto& socket) {
      const auto& [path, file] = socket;
      if (file_at(path) == file) return false;
      log_.write(LogLevel::kError,
                 "nobody finds this daemon any more: its socket was removed or replaced",
                 {{"socket", path}});
      return true;
    });
  }

 private:
  Log& log_;
  std::vector<std::pair<std::string, std::optional<FileId>>> sockets_;
};

Status take_over(Daemon& daemon, AuditLog& audit, const v1::Config& config) {
  CGX_ASSIGN_OR_RETURN(scheduler::Engine::Changes changes, changeable_options(config));
  CGX_RETURN_IF_ERROR(audit.make_room(/*of_operator=*/true));
  const bool taken = daemon.change(std::move(changes));
  return taken ? Status() : Status(StatusCode::kBUSY, "the data thread is busy");
}

AuditRecord audit_record(const Reload& plan, const siginfo_t& signal, const Status& result) {
  AuditRecord record{.caller = sender_text(signal),
                     .action = "reload",
                     .job = {},
                     .communicator = {},
                     .reason = {},
                     .result = result,
                     .changes = {}};
  for (const config::KeyDifference& one : plan.taken) {
    record.changes.push_back(one.key + ": " + one.from + " -> " + one.to);
  }
  return record;
}

// A file that is wrong changes nothing, nor does one whose changes could not be written down.
void reload(Daemon& daemon, Log& log, ServeOptions& options, const FilesAtStart& files,
            const siginfo_t& signal) {
  notify_manager("RELOADING=1");
  const Result<Written> changed = options.load();
  Status taken = changed.ok() ? check_whole(options.config, *changed) : changed.status();
  const Reload plan = taken.ok() ? plan_reload(options.config, changed->config) : Reload{};
  if (taken.ok()) taken = take_over(daemon, options.audit, plan.effective);
  // An error of the audit is in the log, which is all that this caller looks at.
  (void)options.audit.write(audit_record(plan, signal, taken));
  notify_manager("READY=1");
  if (!taken.ok()) {
    return log.write(LogLevel::kError, "reload refused, nothing is changed",
                     {{"cause", taken.message()}});
  }
  for (const std::string& what : made_lossy(options.config, plan.effective)) {
    log.write(LogLevel::kWarning, "reload compresses what travelled exactly", {{"what", what}});
  }
  options.config = plan.effective;
  log.set_level(log_settings(plan.effective.log()).level);
  for (const config::KeyDifference& one : plan.taken) {
    log.write(LogLevel::kInfo, "reload changes a key",
              {{"key", one.key}, {"from", one.from}, {"to", one.to}});
  }
  for (const std::string& key : plan.waiting) {
    log.write(LogLevel::kWarning, "reload leaves a key as it is until the daemon is restarted",
              {{"key", key}});
  }
  const std::vector<std::string> renewed = files.changed();
  for (const std::string& key : renewed) {
    log.write(LogLevel::kWarning, "reload leaves a file as it was until the daemon is restarted",
              {{"key", key}});
  }
  log.write(LogLevel::kInfo, "reloaded",
            {{"changed", plan.taken.size()}, {"waiting", plan.waiting.size() + renewed.size()}});
}

struct StopTimes {
  uint64_t limit_ns;  // of the order
  uint64_t drain_ns;  // of the first signal that comes when an operator's order is under way
  bool by_signal;     // the order is one
};

// Lets every job leave between two steps: until all have, the limit, a second signal of somebody
// else, or an order that leaves no time. What has not by then.
std::vector<std::string> drain(Daemon& daemon, Log& log, const sigset_t& signals, Stopper& stopper,
                               const std::string& cause, const StopTimes& times,
                               const PassOn& pass_on) {
  notify_manager("STOPPING=1\nEXTEND_TIMEOUT_USEC=" +
                 std::to_string((times.limit_ns + kEndNs) / kMicrosecond));
  Draining now{.why = cause, .begun_ns = monotonic_ns(), .end_ns = 0};
  now.end_ns = now.begun_ns + times.limit_ns;
  stopper.drains(now);
  daemon.drain("its cgxd is being stopped (" + cause + ")");
  bool signalled = times.by_signal;
  for (;;) {
    const auto left = daemon.undrained();
    if (left && left->empty()) return {};
    const auto signal = next_signal(signals, 10 * kMillisecond);
    if (signal && !asks_to_stop(*signal)) pass_on(*signal);
    const bool asked = signal && another_asks_to_stop(*signal);
    const bool again = asked && signalled;
    if (asked && !signalled) {
      signalled = true;
      now.end_ns = std::min(now.end_ns, monotonic_ns() + times.drain_ns);
      stopper.drains(now);
      log.write(LogLevel::kInfo, "goes on stopping",
                {{"asked_by", sender_text(*signal)},
                 {"limit_ms", (now.end_ns - now.begun_ns) / kMillisecond}});
    }
    if (monotonic_ns() < now.end_ns && !again && !stopper.hurries()) continue;
    return left.value_or(std::vector<std::string>{"the data thread"});
  }
}

// "nothing", or each communicator with its operations.
std::string in_flight_text(Daemon& daemon) {
  const auto names = daemon.in_flight();
  if (!names) return "not known: the data thread does not answer";
  std::string text;
  for (const std::string& name : *names) text += (text.empty() ? "" : "; ") + name;
  return text.empty() ? "nothing" : text;
}

// What was cut off.
std::vector<std::string> stop(Daemon& daemon, Log& log, const sigset_t& signals, Stopper& stopper,
                              const std::string& cause, const StopTimes& times,
                              const PassOn& pass_on) {
  const uint64_t begun = monotonic_ns();
  log.record("stopping", {{"cause", cause},
                          {"sessions", daemon.sessions_open()},
                          {"in_flight", in_flight_text(daemon)},
                          {"limit_ms", times.limit_ns / kMillisecond}});
  std::vector<std::string> cut_off = drain(daemon, log, signals, stopper, cause, times, pass_on);
  for (const std::string& name : cut_off) {
    log.write(LogLevel::kWarning, "cut off", {{"what", name}});
  }
  log.write(LogLevel::kInfo, "stopped",
            {{"drained", cut_off.empty() ? "yes" : "no"},
             {"sessions", daemon.sessions_open()},
             {"after_ms", (monotonic_ns() - begun) / kMillisecond}});
  return cut_off;
}

}  // namespace

std::optional<siginfo_t> next_signal(const sigset_t& set, uint64_t timeout_ns) {
  const timespec timeout{.tv_sec = static_cast<time_t>(timeout_ns / kSecond),
                         .tv_nsec = static_cast<long>(timeout_ns % kSecond)};
  siginfo_t info{};
  if (::sigtimedwait(&set, &info, &timeout) < 0) return std::nullopt;
  return info;
}

bool another_asks_to_stop(const siginfo_t& signal) {
  return asks_to_stop(signal) && signal.si_pid != ::getpid();
}

void let_last_frames_leave(Daemon& daemon, const sigset_t& signals, uint64_t limit_ms) {
  const uint64_t deadline = monotonic_ns() + limit_ms * kMillisecond;
  for (;;) {
    const auto owed = daemon.last_frames();
    if (!owed || owed->empty() || monotonic_ns() >= deadline) return;
    const auto signal = next_signal(signals, 10 * kMillisecond);
    if (signal && asks_to_stop(*signal)) return;
  }
}

bool drain_as_ordered(Daemon& daemon, Log& log, const sigset_t& signals, Stopper& stopper,
                      const siginfo_t& signal, uint64_t drain_ms, const PassOn& pass_on) {
  const StopOrder order = stopper.begin();
  const StopTimes times{.limit_ns = order.limit_ns.value_or(drain_ms * kMillisecond),
                        .drain_ns = drain_ms * kMillisecond,
                        .by_signal = another_asks_to_stop(signal)};
  const std::string cause = order.by.empty() ? sender_text(signal) : order.by;
  stopper.drained(stop(daemon, log, signals, stopper, cause, times, pass_on));
  return !order.failed;
}

int serve(Daemon& daemon, Log& log, const sigset_t& signals, ServeOptions options) {
  PrivateLife life(options.config.timeouts().drain_ms());
  Watchdog watchdog(log);
  Findable findable(log, options.config);
  const FilesAtStart files(options.config);
  const uint64_t look_ns = options.private_daemon ? kLookNs : kSeldomNs;
  for (;;) {
    const auto signal = next_signal(signals, std::min(look_ns, watchdog.next_look_ns()));
    if (signal && asks_to_stop(*signal)) {
      return drain_as_ordered(daemon, log, signals, options.stopper, *signal,
                              options.config.timeouts().drain_ms(), [](const siginfo_t&) {})
                 ? 0
                 : 1;
    }
    if (signal && signal->si_signo == SIGHUP) reload(daemon, log, options, files, *signal);
    watchdog.look(daemon);
    findable.look();
    if (!options.private_daemon || !life.over(daemon)) continue;
    log.write(LogLevel::kInfo, "stopped", {{"cause", "its last trainer has gone"}});
    return 0;
  }
}

}  // namespace cgx::daemon
