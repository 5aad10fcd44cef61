// cgxctl: what operators type. Parses the command line, makes one or two calls, prints, exits.
// Exit codes: 0 ok, 1 the daemon says no, 2 usage, 3 no daemon reached.
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <thread>

#include "client/ctl/connection.h"
#include "client/ctl/show.h"
#include "config/config.h"
#include "config/text.h"
#include "proto/messages/policy.pb.h"
#include "proto/wire/revision.h"

namespace cgx::ctl {
namespace {

enum ExitCode : int { kOk = 0, kError = 1, kUsage = 2, kUnreachable = 3 };

struct Options {
  Address address;
  std::string output = "table";
  double timeout_s = 0;  // 0: by command
  std::string job, communicator;
  uint32_t uid = UINT32_MAX;
  std::string policy_file;
  std::vector<std::string> assignments;
  uint64_t expected_version = 0;
  std::string reason;
  double wait_s = 30;   // for an agreed plan to take force
  uint32_t last = 100;  // events
  bool follow = false;
};

constexpr double kReadTimeoutS = 10;
constexpr double kChangeTimeoutS = 90;
constexpr auto kLookAgain = std::chrono::milliseconds(100);

v1::Target target_of(const Options& options) {
  v1::Target target;
  target.set_job(options.job);
  target.set_communicator(options.communicator);
  if (options.uid != UINT32_MAX) target.set_uid(options.uid);
  return target;
}

int fail(ExitCode code, const std::string& message) {
  std::cerr << "cgxctl: " << message << "\n";
  return code;
}

int fail(const Status& status) {
  return fail(status.code() == StatusCode::kUNAVAILABLE ? kUnreachable : kUsage, status.message());
}

// One call with its deadline; the stub's method is passed as a member pointer.
class Caller {
 public:
  Caller(Connection connection, const Options& options)
      : connection_(std::move(connection)), options_(options) {}

  template <typename Request, typename Answer>
  grpc::Status call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Answer*),
                    const Request& request, Answer& answer, double default_timeout_s) {
    const double seconds = options_.timeout_s > 0 ? options_.timeout_s : default_timeout_s;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
    return (connection_.stub.get()->*method)(&context, request, &answer);
  }

  int fail_call(const grpc::Status& status) const {
    const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const std::string where = unreachable ? connection_.address + ": " : "";
    return fail(unreachable ? kUnreachable : kError,
                where + config::plain_text(status.error_message()));
  }

 private:
  Connection connection_;
  const Options& options_;
};

template <typename Answer, typename Show>
int print(const Answer& answer, const Options& options, Show show_table) {
  std::cout << (options.output == "json" ? config::to_json(answer) : show_table(answer));
  return std::cout.flush() ? kOk : fail(kError, "cannot write the answer");
}

template <typename Request, typename Answer>
int read(const Options& options, const Environment& environment, const Request& request,
         grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&, Answer*)) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  Answer answer;
  const grpc::Status status = caller.call(method, request, answer, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  return print(answer, options, [](const Answer& shown) { return show(shown); });
}

template <typename Request>
Request targeted(const Options& options) {
  Request request;
  *request.mutable_target() = target_of(options);
  return request;
}

// Codec texts are checked by the daemon, which has the table.
Status load_policy(const std::string& path, v1::Policy& policy) {
  if (path != "-") return config::load_file(path, config::Checks{}, policy);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  return config::load_text(text, "standard input", config::Checks{}, policy);
}

// The file's policy, or the running one (and then nobody may change it meanwhile), with the
// assignments on top.
int prepare_change(const Options& options, Caller& caller, v1::ChangePolicyRequest& request) {
  *request.mutable_target() = target_of(options);
  request.set_reason(options.reason);
  request.set_expected_version(options.expected_version);
  if (!options.policy_file.empty()) {
    const Status status = load_policy(options.policy_file, *request.mutable_policy());
    if (!status.ok()) return fail(kError, status.message());
  } else {
    v1::CurrentPolicy current;
    const grpc::Status status =
        caller.call(&v1::Control::Stub::GetPolicy, targeted<v1::GetPolicyRequest>(options), current,
                    kReadTimeoutS);
    if (!status.ok()) return caller.fail_call(status);
    *request.mutable_policy() = current.policy();
    if (options.expected_version == 0) request.set_expected_version(current.version());
  }
  for (const std::string& assignment : options.assignments) {
    const Status status = config::set(assignment, *request.mutable_policy());
    if (!status.ok()) return fail(kError, status.message());
  }
  return kOk;
}

// What became of an agreed plan, once it is known or the time is over.
int wait_for_force(const Options& options, Caller& caller, const v1::PolicyChange& change) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.wait_s);
  v1::ListJobsRequest request;
  *request.mutable_target() = target_of(options);
  request.mutable_target()->set_job(change.job());
  request.mutable_target()->set_communicator(change.communicator());
  const std::string epoch = "epoch " + std::to_string(change.epoch());
  for (;;) {
    v1::JobList jobs;
    const grpc::Status status =
        caller.call(&v1::Control::Stub::ListJobs, request, jobs, kReadTimeoutS);
    if (!status.ok()) return caller.fail_call(status);
    if (jobs.communicators_size() != 1) return fail(kError, epoch + ": the communicator has ended");
    const v1::Communicator& now = jobs.communicators(0);
    for (const v1::Switch& one : now.switches()) {
      if (one.epoch() != change.epoch()) continue;
      std::cout << epoch << " is in force since step " << one.step() << "\n";
      return kOk;
    }
    if (now.epoch() > change.epoch()) {
      return fail(kError, epoch + " was superseded by epoch " + std::to_string(now.epoch()));
    }
    if (now.state() == "failed") return fail(kError, epoch + " is void: " + now.error());
    if (std::chrono::steady_clock::now() >= deadline) {
      std::cout << epoch << " is agreed and not in force yet: training is at step " << now.step()
                << "\n";
      return kOk;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

template <typename Answer>
int change(const Options& options, const Environment& environment,
           grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                     const v1::ChangePolicyRequest&, Answer*),
           std::string (*show_answer)(const Answer&),
           int (*then)(const Options&, Caller&, const Answer&) = nullptr) {
  if (options.policy_file.empty() && options.assignments.empty()) {
    return fail(kUsage, "give a policy FILE, or --set key=value");
  }
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::ChangePolicyRequest request;
  if (const int code = prepare_change(options, caller, request); code != kOk) return code;
  Answer answer;
  const grpc::Status status = caller.call(method, request, answer, kChangeTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const int printed = print(answer, options, show_answer);
  return printed == kOk && then != nullptr ? then(options, caller, answer) : printed;
}

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

void add_target(CLI::App& command, Options& options) {
  command.add_option("-j,--job", options.job, "Name of the job, if there are several");
  command.add_option("-c,--communicator", options.communicator,
                     "Name of the communicator, if the job has several");
  command.add_option("-u,--uid", options.uid, "Owner, if two users' jobs share a name");
}

void add_change(CLI::App& command, Options& options) {
  add_target(command, options);
  command.add_option("FILE", options.policy_file,
                     "Policy in YAML (- for standard input); keys left out take their defaults");
  command
      .add_option("-s,--set", options.assignments,
                  "key=value on top of FILE, or of the running policy; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

using Run = std::function<int()>;

void add_policy_commands(CLI::App& app, Options& options, const Environment& environment,
                         Run& run) {
  CLI::App& policy = *app.add_subcommand("policy", "See and change how gradients travel");
  policy.require_subcommand(1);
  CLI::App& get = *policy.add_subcommand("get", "Print the running policy as a file");
  add_target(get, options);
  get.callback([&] {
    run = [&] {
      return read(options, environment, targeted<v1::GetPolicyRequest>(options),
                  &v1::Control::Stub::GetPolicy);
    };
  });
  CLI::App& check = *policy.add_subcommand("check", "Ask every machine whether it would accept");
  add_change(check, options);
  check.callback([&] {
    run = [&] { return change(options, environment, &v1::Control::Stub::CheckPolicy, show_check); };
  });
  CLI::App& diff = *policy.add_subcommand("diff", "Compare with the running policy");
  add_change(diff, options);
  diff.callback([&] {
    run = [&] {
      return change<v1::PolicyDiff>(options, environment, &v1::Control::Stub::DiffPolicy, show);
    };
  });
  CLI::App& apply_command = *policy.add_subcommand(
      "apply", "Change the policy; prints the step at which it takes effect on every rank");
  add_change(apply_command, options);
  apply_command.add_option("--expected-version", options.expected_version,
                           "Refuse if the running policy has another version");
  apply_command.add_option("--reason", options.reason, "Why, for the audit log");
  apply_command.add_option("--wait", options.wait_s,
                           "Seconds to wait until the plan is in force, and say so; 0: not at all");
  apply_command.callback([&] {
    run = [&] {
      return change(options, environment, &v1::Control::Stub::ApplyPolicy, show_apply,
                    options.wait_s > 0 && options.output != "json" ? wait_for_force : nullptr);
    };
  });
}

void add_commands(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  const auto command = [&](const char* name, const char* help, bool with_target, const Run& body) {
    CLI::App& added = *app.add_subcommand(name, help);
    if (with_target) add_target(added, options);
    added.callback([&run, body] { run = body; });
  };
  using Stub = v1::Control::Stub;
  command("status", "The daemon in a few lines", false,
          [&] { return read(options, environment, v1::GetStatusRequest(), &Stub::GetStatus); });
  command("jobs", "Communicators: state, step, plan, traffic", true, [&] {
    return read(options, environment, targeted<v1::ListJobsRequest>(options), &Stub::ListJobs);
  });
  command("tensors", "Tensors of a communicator: group, codec and why", true, [&] {
    return read(options, environment, targeted<v1::ListTensorsRequest>(options),
                &Stub::ListTensors);
  });
  command("peers", "Links to other machines' daemons", true, [&] {
    return read(options, environment, targeted<v1::ListPeersRequest>(options), &Stub::ListPeers);
  });
  command("codecs", "What a policy can choose from", false,
          [&] { return read(options, environment, v1::ListCodecsRequest(), &Stub::ListCodecs); });
  command("counters", "Totals since the daemon started, without zeros (all with -o json)", false,
          [&] { return read(options, environment, v1::GetCountersRequest(), &Stub::GetCounters); });
  CLI::App& recorded = *app.add_subcommand(
      "events", "What happened last: arrivals, frames, arithmetic, results, failures");
  add_target(recorded, options);
  recorded.add_option("-n,--last", options.last, "How many of the newest; 0: all (100)");
  recorded.add_flag("-f,--follow", options.follow, "Go on with what happens, until interrupted");
  recorded.callback([&] { run = [&] { return events(options, environment); }; });
  add_policy_commands(app, options, environment, run);
}

void add_options(CLI::App& app, Options& options) {
  app.set_version_flag("--version",
                       program_text("cgxctl", CGX_VERSION) + "\nspeaks control " +
                           v1::Policy::descriptor()->file()->package(),
                       "Print version, revision and the formats spoken, and exit");
  app.add_option("-a,--address,--socket", options.address.text,
                 "Daemon's control socket (/path) or host:port; default: $CGX_CONTROL, else the "
                 "user's own daemon, else /run/cgxd/control.sock");
  app.add_option("--ca", options.address.ca_file,
                 "PEM file of the daemon's authority, for host:port");
  app.add_option("--certificate", options.address.certificate_file, "PEM file of your certificate");
  app.add_option("--key", options.address.key_file, "PEM file of your private key");
  app.add_option("-o,--output", options.output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  app.add_option("--timeout", options.timeout_s, "Seconds to wait for the answer")
      ->check(CLI::PositiveNumber);
  app.require_subcommand(0, 1);  // so that a misspelt one is named
  app.fallthrough();
}

Environment read_environment() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  return {geteuid(), variable("CGX_CONTROL"), variable("XDG_RUNTIME_DIR")};
}

int run_command_line(int argc, char** argv) {
  grpc_init();  // never shut down: that may wait 10 s for a poller
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
  return cgx::ctl::run_command_line(argc, argv);
}
