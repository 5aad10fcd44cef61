// cgxd: reads the words, starts the daemon, waits for a reason to end.
//
// main owns signals and start and stop; the agents' threads do the work. Exit status: 0 ended as
// asked, 1 an error named on standard error, 2 wrong usage; `cgxd run`: the command's.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "config/config.h"
#include "config/effective.h"
#include "daemon/base/clock.h"
#include "daemon/base/open_files.h"
#include "daemon/base/openssl_state.h"
#include "daemon/base/spawn.h"
#include "daemon/check_machine.h"
#include "daemon/command_line.h"
#include "daemon/daemon.h"
#include "daemon/drain_command.h"
#include "daemon/ending.h"
#include "daemon/notify.h"
#include "daemon/operators_edge.h"
#include "daemon/options.h"
#include "daemon/planner/plan_log.h"
#include "daemon/planner/profile_file.h"
#include "daemon/policy/policy_message.h"
#include "daemon/run_command.h"
#include "daemon/serve.h"
#include "daemon/stopper.h"
#include "daemon/transports.h"
#include "proto/wire/run_directory.h"
#include "proto/wire/standard_descriptors.h"
#include "transport/ucx.h"

namespace cgx::daemon {
namespace {

constexpr int kNotExecutable = 126, kNotFound = 127;  // a command, as shells have it

int fail(const Status& status) {
  std::fprintf(stderr, "cgxd: %s\n", status.to_string().c_str());
  return 1;
}

std::string private_socket(v1::Config config) {
  config::resolve_paths(config);
  return config.run_directory() + "/run-" + std::to_string(::getpid()) + ".sock";
}

config::Checks checks() {
  config::Checks all = config_checks();
  all.transport = check_transport;
  return all;
}

// A configuration without what the machine's interfaces say; its paths are known even if those do
// not fit.
Result<v1::Config> read(const CommandLine& line, const std::string& text) {
  v1::Config config;
  CGX_RETURN_IF_ERROR(config::load_text(text, line.config, checks(), config));
  for (const std::string& assignment : line.assignments) {
    const Status set = config::set(assignment, config);
    if (!set.ok()) return Status(set.code(), "--set: " + set.message());
  }
  CGX_RETURN_IF_ERROR(config::check(config, checks()));
  config::fill_defaults(config);
  if (!line.socket.empty()) config.mutable_client()->set_socket(line.socket);
  if (line.action == CommandLine::Action::kRun) {
    config.mutable_client()->set_socket(private_socket(config));
  }
  const bool chosen = !line.socket.empty() || line.action == CommandLine::Action::kRun;
  if (chosen && config.control().socket().empty()) {
    config.mutable_control()->set_socket(control_socket_beside(config.client().socket()));
  }
  config::resolve_paths(config);
  return config;
}

Result<std::string> text_of_file(const CommandLine& line) {
  return line.config.empty() ? std::string() : config::read_file(line.config);
}

Result<v1::Config> read(const CommandLine& line) {
  CGX_ASSIGN_OR_RETURN(const std::string text, text_of_file(line));
  return read(line, text);
}

struct Configuration {
  v1::Config written;   // what a reload is compared with
  v1::Config resolved;  // with what the machine's interfaces say now
};
Result<Configuration> load(const CommandLine& line) {
  CGX_ASSIGN_OR_RETURN(const v1::Config written, read(line));
  Configuration both{.written = written, .resolved = written};
  CGX_RETURN_IF_ERROR(resolve_network(both.resolved));
  return both;
}

// What a running daemon made of its interfaces stays, so a reload does not ask them: one that is
// down at the moment refuses no change of another key.
Result<Written> load_again(const CommandLine& line) {
  CGX_ASSIGN_OR_RETURN(std::string text, text_of_file(line));
  CGX_ASSIGN_OR_RETURN(v1::Config config, read(line, text));
  CGX_RETURN_IF_ERROR(check_network(config));
  return Written{std::move(config), line.config, std::move(text)};
}

// Where trainers look for this daemon, whether or not the rest of the configuration is right.
std::string clients_socket(const CommandLine& line) {
  const Result<v1::Config> config = read(line);
  if (config.ok()) return config->client().socket();
  if (!line.socket.empty()) return line.socket;
  v1::Config without_file;
  for (const std::string& assignment : line.assignments) {
    v1::Config with = without_file;
    const bool good = config::set(assignment, with).ok() && config::check(with, checks()).ok();
    if (good) without_file = with;
  }
  config::fill_defaults(without_file);
  config::resolve_paths(without_file);
  return without_file.client().socket();
}

// A daemon that does not start tells trainers why, too: they find no socket, but this.
int refuse(const CommandLine& line, const Status& why) {
  const bool of_a_command = line.action == CommandLine::Action::kRun;
  const std::string socket = clients_socket(line);
  if (why.code() == StatusCode::kALREADY_EXISTS) return fail(why);  // another daemon serves
  const std::string server = served_by_another(socket);
  if (!server.empty()) {
    return fail({why.code(), why.message() + "; " + socket + " is already served by " + server});
  }
  if (!of_a_command && prepare_directory(socket).ok()) leave_refusal(socket, why.message());
  return fail(why);
}

// Blocked before any thread exists, so all of them inherit it and main alone takes signals. One
// that is blocked comes though it is ignored, and would be passed on to a command under nohup.
sigset_t block_signals(bool beside_a_command) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int signal : RunCommand::forwarded()) ::sigaddset(&set, signal);
  for (const int signal : kOfATerminal) {
    if (beside_a_command && is_ignored(signal)) ::sigdelset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (const int fails_instead : {SIGPIPE, SIGXFSZ}) ::signal(fails_instead, SIG_IGN);
  return set;
}

// Signals are the command's, but for our own: an order to stop (cgxctl drain, a lost listener), on
// which the command's jobs leave between two steps before it is told, too.
int run_beside(Daemon& daemon, Log& log, const sigset_t& signals, Stopper& stopper,
               const std::vector<std::string>& arguments, const v1::Config& config,
               const OpenFilesLimit& files) {
  Result<RunCommand> command = [&] {
    const OpenFilesAsBefore inherited(files);
    return RunCommand::start(arguments, {"CGX_SOCKET=" + config.client().socket(),
                                         "CGX_CONTROL=" + config.control().socket()});
  }();
  if (!command.ok()) {
    fail(command.status());
    return command.status().code() == StatusCode::kNOT_FOUND ? kNotFound : kNotExecutable;
  }
  bool drained = false;
  for (;;) {
    const auto signal = next_signal(signals, 3600 * kSecond);
    if (!signal) continue;
    if (signal->si_signo == SIGTERM && signal->si_pid == ::getpid()) {
      drained = true;
      drain_as_ordered(daemon, log, signals, stopper, *signal, config.timeouts().drain_ms(),
                       [&](const siginfo_t& other) {
                         if (other.si_signo != SIGCHLD) command->forward(other);
                       });
    }
    if (signal->si_signo != SIGCHLD) command->forward(*signal);
    const auto status = command->ended();  // SIGCHLD may come while jobs leave
    if (!status) continue;
    if (!drained) let_last_frames_leave(daemon, signals, config.timeouts().drain_ms());
    return *status;
  }
}

Status use_plan_files(const CommandLine& line, scheduler::EventSink& events,
                      std::unique_ptr<PlanFile>& record, DaemonOptions& options) {
  if (!line.record_plans.empty()) {
    CGX_ASSIGN_OR_RETURN(record, PlanFile::create(line.record_plans, events));
    options.record_plans = record.get();
  }
  if (line.replay_plans.empty()) return {};
  CGX_ASSIGN_OR_RETURN(options.replay_plans, PlanFile::read(line.replay_plans));
  return {};
}

// Whatever ends the daemon, whoever waits for its drain is told.
class Drained {
 public:
  explicit Drained(Stopper& stopper) : stopper_(stopper) {}
  ~Drained() { stopper_.drained({}); }
  Drained(const Drained&) = delete;
  Drained& operator=(const Drained&) = delete;

 private:
  Stopper& stopper_;
};

int start(const CommandLine& line, const Configuration& configuration) {
  const v1::Config& config = configuration.resolved;
  const sigset_t signals = block_signals(line.action == CommandLine::Action::kRun);
  const OpenFilesLimit files = raise_open_files_limit();
  Ending ending(log_settings(config.log()), signals);
  Log log(log_settings(config.log()));
  LogEvents events(log);
  Result<DaemonOptions> options = daemon_options(config);
  if (!options.ok()) return refuse(line, options.status());
  std::unique_ptr<PlanFile> plans;
  const Status planned = use_plan_files(line, events, plans, *options);
  if (!planned.ok()) return refuse(line, planned);
  ProfileFile profiles(config.run_directory() + "/kept_plans", events);
  options->keep_profiles = &profiles;
  options->profiles = std::make_shared<const scheduler::KeptProfiles>(profiles.profiles());
  Result<TransportChoice> transport = choose_transport(config);
  if (!transport.ok()) return refuse(line, transport.status());
  const auto stopper = std::make_shared<Stopper>([] { ::kill(::getpid(), SIGTERM); });
  options->on_unfit = [stopper](const Status& why) {
    stopper->stop({.by = why.message(), .failed = true, .limit_ns = {}});
  };
  auto daemon = Daemon::start(*options, std::move(transport->make), events);
  if (!daemon.ok()) return refuse(line, daemon.status());
  const kernels::Lane& lane = (*daemon)->lane();
  const DaemonFacts facts{version_number(), options->name, lane.name, lane.tuning,
                          (*daemon)->tuning_ns()};
  const auto on_junk = [&counters = (*daemon)->counters()] {
    counters.add(scheduler::Counter::kcontrol_junk);
  };
  const auto on_share = [&shares = (*daemon)->counters().shares()](const scheduler::Share& share) {
    shares.show(share);
  };
  const auto operators =
      OperatorsEdge::open(config, facts, (*daemon)->operators(), log, (*daemon)->look(),
                          (*daemon)->fleet(), {on_junk, on_share, stopper.get()});
  if (!operators.ok()) return refuse(line, operators.status());
  const Status serves = (*daemon)->serve();
  if (!serves.ok()) return refuse(line, serves);
  const Drained drained(*stopper);
  forget_refusal(config.client().socket());
  log.write(LogLevel::kInfo, options->version + " serves",
            {{"clients", config.client().socket()},
             {"operators", config.control().socket()},
             {"mesh", (*daemon)->mesh_address()},
             {"transport", transport->name},
             {"lane", facts.lane},
             {"tuning", to_string(lane.tuning)},
             {"tuning_ms", facts.tuning_ns / kMillisecond},
             {"open_files", files.now}});
  notify_manager("READY=1");
  const int status = line.action == CommandLine::Action::kRun
                         ? run_beside(**daemon, log, signals, *stopper, line.command, config, files)
                         : serve(**daemon, log, signals,
                                 {.config = configuration.written,
                                  .load = [&line] { return load_again(line); },
                                  .stopper = *stopper,
                                  .audit = (*operators)->audit(),
                                  .private_daemon = line.private_daemon});
  ending.begin();
  return status;
}

int drain(const CommandLine& line) {
  const Result<v1::Config> config = read(line);
  if (!config.ok()) return fail(config.status());
  return fail(drain_running(config->control().socket(), line.drain_limit));
}

int run(int argc, char** argv) {
  take_standard_descriptors();
  transport::prepare_process();
  keep_openssl_state();
  ::signal(SIGCHLD, SIG_DFL);  // a parent may have ignored it: then no child's end is told
  const CommandLine line = parse_command_line(argc, argv);
  if (line.action == CommandLine::Action::kExit) return line.exit_code;
  if (line.action == CommandLine::Action::kDrain) return drain(line);
  const Result<Configuration> config = load(line);
  if (!config.ok()) {
    const bool serves = line.action == CommandLine::Action::kServe;
    return serves ? refuse(line, config.status()) : fail(config.status());
  }
  switch (line.action) {
    case CommandLine::Action::kCheckConfig:
      if (const Status here = check_machine(config->resolved); !here.ok()) return fail(here);
      for (const std::string& each : secrets_warnings(config->resolved, line.config)) {
        std::fprintf(stderr, "cgxd: warning: %s\n", each.c_str());
      }
      [[fallthrough]];
    case CommandLine::Action::kPrintConfig:
      std::fputs(config::print(config->resolved).c_str(), stdout);
      return 0;
    case CommandLine::Action::kServe:
    case CommandLine::Action::kRun:
      return start(line, *config);
    case CommandLine::Action::kDrain:
    case CommandLine::Action::kExit:
      break;
  }
  return line.exit_code;
}

}  // namespace
}  // namespace cgx::daemon

int main(int argc, char** argv) {
  return cgx::daemon::run(argc, argv);
}
