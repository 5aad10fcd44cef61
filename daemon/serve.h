// What main does while the daemon works: takes signals, tells the service manager that the daemon
// is alive, takes over a changed configuration (SIGHUP), ends.
//
// Thread rule: main.
#pragma once

#include <signal.h>

#include <functional>
#include <optional>

#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "daemon/operators/audit.h"
#include "daemon/reload.h"
#include "daemon/stopper.h"
#include "proto/messages/config.pb.h"

namespace cgx::daemon {

// One signal, or nothing within `timeout_ns`. `set` is blocked in all threads.
std::optional<siginfo_t> next_signal(const sigset_t& set, uint64_t timeout_ns);
bool another_asks_to_stop(const siginfo_t& signal);  // not this process itself

// Lets the jobs leave, cuts off those that have not in time, and tells that to whoever ordered the
// end. `drain_ms`: for an order without a limit. `pass_on`: gets signals that mean something else
// meanwhile. False: the daemon ends for what it lacks.
using PassOn = std::function<void(const siginfo_t&)>;
bool drain_as_ordered(Daemon& daemon, Log& log, const sigset_t& signals, Stopper& stopper,
                      const siginfo_t& signal, uint64_t drain_ms, const PassOn& pass_on);

// Where nobody trains here any more: other machines may still lack what this one has reduced last.
// Until a signal asks to stop, or the limit.
void let_last_frames_leave(Daemon& daemon, const sigset_t& signals, uint64_t limit_ms);

struct ServeOptions {
  v1::Config config;                      // complete, as it is written, in force
  std::function<Result<Written>()> load;  // once more
  Stopper& stopper;                       // whoever ordered the end learns what was cut off
  AuditLog& audit;                        // of what a reload changes
  bool private_daemon = false;            // ends when nobody is connected any more
};

// Returns when the daemon is to end, drained: 0, or 1 where it ends for what it lacks.
int serve(Daemon& daemon, Log& log, const sigset_t& signals, ServeOptions options);

}  // namespace cgx::daemon
