// cgxctl: what operators type. Parses the command line, makes one or two calls, prints, exits.
// Exit codes: 0 ok, 1 the daemon says no or a drain cut something off, 2 usage, 3 no daemon
// reached, or it does not answer.
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <thread>

#include "client/ctl/command.h"
#include "client/ctl/doctor.h"
#include "client/ctl/plan_commands.h"
#include "client/ctl/policy_commands.h"
#include "config/usage.h"
#include "proto/messages/policy.pb.h"
#include "proto/wire/revision.h"
#include "proto/wire/standard_descriptors.h"

namespace cgx::ctl {
namespace {

// What the recorder remembers, and with --follow what comes, until the command is interrupted.
int events(const Options& options, const Environment& environment) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  auto request = targeted<v1::ListEventsRequest>(options);
  request.set_last(options.last);
  std::string (*show_answer)(const v1::EventList&) = show;
  for (;;) {
    v1::EventList answer;
    const grpc::Status status =
        caller.call(&v1::Control::Stub::ListEvents, request, answer, kReadTimeoutS);
    if (!status.ok()) return caller.fail_call(status);
    const bool news = !answer.events().empty();
    if (!options.follow) return print(answer, options, show_answer);
    if (news && print(answer, options, show_answer) != kOk) return kError;
    if (news) show_answer = show_more;
    request.set_from(answer.next());
    request.set_last(0);
    std::this_thread::sleep_for(kLookAgain);
  }
}

int all_machines(const Options& options, const Environment& environment) {
  v1::DiagnoseRequest request;
  request.set_linked(true);
  return read(options, environment, request, &v1::Control::Stub::Diagnose);
}

constexpr double kWaitMaxS = 24 * 3600;
constexpr double kDrainMaxS = 3600;               // of timeouts.drain_ms, which the daemon keeps to
constexpr auto kGone = std::chrono::seconds(10);  // more, in which a daemon ends its threads
constexpr double kGoneS = kGone.count();

constexpr const char* kEndedUnheard =
    "the daemon has ended; it told only those who waited before this one what was cut off, and its "
    "log";

std::string show_drained(const v1::DrainAnswer& shown) {
  std::string text = "drained: " + std::to_string(shown.communicators()) + " communicators of " +
                     std::to_string(shown.sessions()) +
                     " sessions were told, the daemon has ended\n";
  for (const std::string& name : shown.cut_off()) text += "cut off: " + name + "\n";
  return text;
}

// Until the daemon has gone, as long as --wait.
int drain(const Options& options, const Environment& environment) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::DaemonStatus before;
  const grpc::Status there =
      caller.call(&v1::Control::Stub::GetStatus, v1::GetStatusRequest(), before, kReadTimeoutS);
  if (caller.unanswered(there)) return caller.fail_call(there);  // draining waits much longer
  v1::DrainRequest request;
  request.set_reason(options.reason);
  const bool limited = options.limit_s >= 0;
  if (limited) request.set_limit_ms(static_cast<uint32_t>(options.limit_s * 1000));
  const double usual_s = kGoneS + (limited ? options.limit_s : kDrainMaxS);
  const double wait_s = options.end_s >= 0 ? options.end_s : usual_s;
  request.set_wait_ms(static_cast<uint32_t>(wait_s * 1000));
  v1::DrainAnswer answer;
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::microseconds(static_cast<int64_t>(wait_s * 1e6));
  const grpc::Status status = caller.call_within(&v1::Control::Stub::Drain, request, answer,
                                                 wait_s + kReadTimeoutS, "--wait");
  if (!status.ok()) return caller.fail_call(status);
  const auto still_drains = [&] {
    return fail(kError, "the daemon is still draining after " +
                            human_time(static_cast<uint64_t>(wait_s * 1e9)));
  };
  const auto still_there = [&] {
    return fail(kError,
                "the daemon has not ended, though its jobs have left or were cut off (a command of "
                "cgxd run may go on)");
  };
  const auto gone = [&] {
    v1::DaemonStatus still;
    return caller.call(&v1::Control::Stub::GetStatus, v1::GetStatusRequest(), still, kReadTimeoutS)
               .error_code() == grpc::StatusCode::UNAVAILABLE;
  };
  while (!answer.drained()) {  // it has answered at once where many wait already
    if (std::chrono::steady_clock::now() >= deadline) return still_drains();
    if (gone()) return fail(kError, kEndedUnheard);
    std::this_thread::sleep_for(kLookAgain);
  }
  const auto drained = std::chrono::steady_clock::now();
  const auto last_look = options.end_s >= 0 ? deadline : drained + kGone;
  while (!gone()) {
    if (std::chrono::steady_clock::now() >= last_look) return still_there();
    std::this_thread::sleep_for(kLookAgain);
  }
  const int printed = print(answer, options, show_drained);
  return answer.cut_off().empty() ? printed : kError;
}

void add_status(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  CLI::App& status =
      *app.add_subcommand("status", "The daemon: sessions, links, bytes, load, warnings");
  status.add_flag("--all", options.all, "Every daemon that this one has links with, a line each");
  status.callback([&] {
    run = [&] {
      if (options.all) return all_machines(options, environment);
      return read(options, environment, v1::GetStatusRequest(), &v1::Control::Stub::GetStatus);
    };
  });
}

void add_drain(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  CLI::App& drained = *app.add_subcommand(
      "drain", "Stop the daemon when its jobs have left, between two steps (timeouts.drain_ms)");
  drained.add_option("--reason", options.reason, "Why: told to the jobs and the audit log");
  drained
      .add_option("--limit", options.limit_s, "Seconds its jobs have to leave (timeouts.drain_ms)")
      ->check(CLI::Range(0.0, 3600.0))
      ->check(check_seconds, "");
  drained
      .add_option("--wait", options.end_s,
                  "Seconds to wait until the daemon has ended (10 more than the limit)")
      ->check(CLI::Range(0.0, kWaitMaxS))
      ->check(check_seconds, "");
  drained.callback([&] { run = [&] { return drain(options, environment); }; });
}

void add_events(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  CLI::App& recorded = *app.add_subcommand(
      "events", "What happened last: arrivals, frames, arithmetic, results, failures");
  add_target(recorded, options);
  recorded.add_option("-n,--last", options.last,
                      "Number of newest events to print; 0: all; default: 100");
  recorded.add_flag("-f,--follow", options.follow, "Go on with new events until interrupted");
  recorded.callback([&] { run = [&] { return events(options, environment); }; });
}

void add_all(CLI::App& command, Options& options) {
  command.add_flag("--all", options.all, "Ask the daemons of the job's other machines, too");
}

void add_commands(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  const auto command = [&](const char* name, const char* help, bool with_target, const Run& body) {
    CLI::App& added = *app.add_subcommand(name, help);
    if (with_target) add_target(added, options);
    added.callback([&run, body] { run = body; });
  };
  using Stub = v1::Control::Stub;
  add_status(app, options, environment, run);
  CLI::App& jobs = *app.add_subcommand(
      "jobs", "Jobs, a line for each communicator: state, step, ratio, traffic");
  add_target(jobs, options);
  add_all(jobs, options);
  jobs.callback([&] {
    run = [&] {
      auto request = targeted<v1::ListJobsRequest>(options);
      request.set_all(options.all);
      return read(options, environment, request, &Stub::ListJobs);
    };
  });
  add_plan_commands(app, options, environment, run);
  CLI::App& tensors = *app.add_subcommand(
      "tensors", "Tensors of a job: the codec of each, why it has that, its group");
  add_target(tensors, options);
  add_all(tensors, options);
  tensors.callback([&] {
    run = [&] {
      auto request = targeted<v1::ListTensorsRequest>(options);
      request.set_all(options.all);
      return read(options, environment, request, &Stub::ListTensors);
    };
  });
  command("peers", "Links to other machines' daemons", true, [&] {
    return read(options, environment, targeted<v1::ListPeersRequest>(options), &Stub::ListPeers);
  });
  command("codecs", "Codecs that a policy can choose, and what each is for", false,
          [&] { return read(options, environment, v1::ListCodecsRequest(), &Stub::ListCodecs); });
  command("counters", "Totals since the daemon started, without zeros (all with -o json)", false,
          [&] { return read(options, environment, v1::GetCountersRequest(), &Stub::GetCounters); });
  add_drain(app, options, environment, run);
  add_events(app, options, environment, run);
  add_doctor(app, options, environment, run);
  add_policy_commands(app, options, environment, run);
}

void add_options(CLI::App& app, Options& options) {
  app.set_version_flag("--version",
                       program_text("cgxctl", CGX_VERSION) + "\nspeaks control " +
                           v1::Policy::descriptor()->file()->package(),
                       "Print version, revision and the formats spoken, and exit");
  app.add_option("-a,--address,--socket", options.address.text,
                 "Daemon's control socket (/path) or host:port; default: $CGX_CONTROL, else beside "
                 "$CGX_SOCKET, else the user's own daemon, else /run/cgxd/control.sock");
  app.add_option("--ca", options.address.ca_file,
                 "PEM file of the daemon's authority, for host:port");
  app.add_option("--certificate", options.address.certificate_file, "PEM file of your certificate");
  app.add_option("--key", options.address.key_file, "PEM file of your private key");
  app.add_option("-o,--output", options.output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  app.add_option("--timeout", options.timeout_s,
                 "Seconds to wait for the answer; default: 10, for changes 90")
      ->check(
          [](const std::string&
                 text) {  // CLI11's own message ends with the 309 digits of its limit
            const bool fits =
                CLI::PositiveNumber(std::string(text)).empty() && check_seconds(text).empty();
            return fits ? "" : text + " is no number of seconds above 0";
          },
          "POSITIVE");
  app.require_subcommand(0, 1);  // so that a misspelt one is named
  app.failure_message(config::usage_message);
  app.fallthrough();
}

Environment read_environment() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  return {geteuid(), variable("CGX_CONTROL"), variable("XDG_RUNTIME_DIR"), variable("CGX_SOCKET")};
}

int run_command_line(int argc, char** argv) {
  ::signal(SIGCHLD, SIG_DFL);  // a parent may have ignored it: then no child's end is told
  grpc_init();                 // never shut down: that may wait 10 s for a poller
  gpr_set_log_function([](gpr_log_func_args*) {});  // errors come back as statuses
  const Environment environment = read_environment();
  Options options;
  Run run;
  CLI::App app("cgxctl: see and steer cgxd, the daemon that moves gradients", "cgxctl");
  add_options(app, options);
  add_commands(app, options, environment, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (run) return run();
  std::cerr << "cgxctl: say what to do\n\n" << app.help();
  return kUsage;
}

}  // namespace
}  // namespace cgx::ctl

int main(int argc, char** argv) {
  cgx::take_standard_descriptors();
  return cgx::ctl::run_command_line(argc, argv);
}
