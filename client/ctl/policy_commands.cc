#include "client/ctl/policy_commands.h"

#include <unistd.h>

#include <iterator>
#include <thread>

namespace cgx::ctl {
namespace {

int nothing_to_change() {
  return fail(kUsage, "give a policy FILE, or --set key=value");
}

Result<std::string> text_of(const std::string& path) {
  if (path != "-") return config::read_file(path);
  return std::string{std::istreambuf_iterator<char>(std::cin), {}};
}

// What a file says; the daemon fills in the rest, and checks codec texts: it has the table.
Status load_policy(const std::string& path, v1::ChangePolicyRequest& request) {
  const std::string name = path == "-" ? "standard input" : path;
  CGX_ASSIGN_OR_RETURN(const std::string text, text_of(path));
  v1::Policy& policy = *request.mutable_policy();
  CGX_RETURN_IF_ERROR(config::load_text(text, name, config::Checks{}, policy));
  request.set_no_rules(config::gives_empty_list(text, "rules"));
  if (policy.ByteSizeLong() > 0 || request.no_rules()) return {};
  return invalid_argument(name + ": says nothing; a policy file gives at least one key");
}

Status assign(const std::string& assignment, v1::ChangePolicyRequest& request) {
  v1::Policy& policy = *request.mutable_policy();
  CGX_RETURN_IF_ERROR(config::set(assignment, policy));
  const bool of_rules = assignment.starts_with("rules=");
  if (of_rules) request.set_no_rules(policy.rules_size() == 0);
  return {};
}

}  // namespace

int prepare_change(const Options& options, Caller& caller, v1::ChangePolicyRequest& request) {
  *request.mutable_target() = target_of(options);
  request.set_reason(options.reason);
  request.set_expected_version(options.expected_version);
  if (!options.policy_file.empty()) {
    const Status status = load_policy(options.policy_file, request);
    if (!status.ok()) return fail(kError, status.message());
  } else {
    v1::CurrentPolicy current;
    const grpc::Status status =
        caller.call(&v1::Control::Stub::GetPolicy, targeted<v1::GetPolicyRequest>(options), current,
                    kReadTimeoutS);
    if (!status.ok()) return caller.fail_call(status);
    *request.mutable_policy() = current.policy();
    request.set_no_rules(current.policy().rules_size() == 0);
    if (options.expected_version == 0) request.set_expected_version(current.version());
  }
  for (const std::string& assignment : options.assignments) {
    const Status status = assign(assignment, request);
    if (!status.ok()) return fail(kError, status.message());
  }
  return kOk;
}

namespace {

// At a terminal the person there decides; elsewhere the daemon refuses what nobody allowed.
int allow_loss(const Options& options, Caller& caller, v1::ChangePolicyRequest& request) {
  request.set_lossy(options.lossy);
  if (options.lossy || ::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return kOk;
  v1::PolicyDiff diff;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::DiffPolicy, request, diff, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const std::string loss = loss_text(diff.effect());
  if (loss.empty()) return kOk;
  std::cerr << effect_text(diff.effect()) << "this " << loss << "\ndo it? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "yes") return fail(kError, "nothing was changed");
  request.set_lossy(true);
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
    const v1::Communicator* const found = only_one(jobs);
    if (found == nullptr) return fail(kError, epoch + ": the communicator has ended");
    const v1::Communicator& now = *found;
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

}  // namespace

int apply_request(const Options& options, Caller& caller, v1::ChangePolicyRequest& request) {
  if (const int code = allow_loss(options, caller, request); code != kOk) return code;
  v1::PolicyChange answer;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::ApplyPolicy, request, answer, kChangeTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const int printed = print(answer, options, show_apply);
  const bool waits = options.wait_s > 0 && options.output != "json";
  return printed == kOk && waits ? wait_for_force(options, caller, answer) : printed;
}

namespace {

// Whatever asks for a change that a file or --set describes.
template <typename Act>
int with_change(const Options& options, const Environment& environment, Act act) {
  if (options.policy_file.empty() && options.assignments.empty()) return nothing_to_change();
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::ChangePolicyRequest request;
  if (const int code = prepare_change(options, caller, request); code != kOk) return code;
  return act(caller, request);
}

int apply_policy(const Options& options, const Environment& environment) {
  return with_change(options, environment, [&](Caller& caller, v1::ChangePolicyRequest& request) {
    return apply_request(options, caller, request);
  });
}

// The version asked for; without one, the newest before the running policy that was in force.
const v1::PolicyVersion* earlier_version(const v1::PolicyHistory& history, uint64_t wanted) {
  const int last = history.versions_size() - 1;
  if (wanted == 0) return last < 1 ? nullptr : &history.versions(last - 1);
  for (const v1::PolicyVersion& one : history.versions()) {
    if (one.version() == wanted) return &one;
  }
  return nullptr;
}

int rollback(const Options& options, const Environment& environment) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::PolicyHistory history;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::GetPolicyHistory, targeted<v1::GetPolicyRequest>(options),
                  history, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const v1::PolicyVersion* const version = earlier_version(history, options.version);
  if (version == nullptr) {
    const std::string wrong = options.version == 0
                                  ? "there is no policy before the running one"
                                  : "there is no version " + std::to_string(options.version);
    return fail(kError, wrong + "; the history:\n" + show(history));
  }
  v1::ChangePolicyRequest request;
  *request.mutable_target() = target_of(options);
  *request.mutable_policy() = version->policy();
  request.set_no_rules(version->policy().rules_size() == 0);
  request.set_expected_version(history.versions(history.versions_size() - 1).version());
  request.set_reason(options.reason.empty()
                         ? "rollback to version " + std::to_string(version->version())
                         : options.reason);
  return apply_request(options, caller, request);
}

template <typename Answer>
int ask(const Options& options, const Environment& environment,
        grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                  const v1::ChangePolicyRequest&, Answer*),
        std::string (*show_answer)(const Answer&)) {
  return with_change(
      options, environment, [&](Caller& caller, const v1::ChangePolicyRequest& request) {
        Answer answer;
        const grpc::Status status = caller.call(method, request, answer, kChangeTimeoutS);
        if (!status.ok()) return caller.fail_call(status);
        return print(answer, options, show_answer);
      });
}

}  // namespace

void add_change(CLI::App& command, Options& options) {
  add_target(command, options);
  command.add_option("FILE", options.policy_file,
                     "Policy in YAML (- for standard input); what it does not say is as configured "
                     "in the coordinator's daemon (version 1 of the history)");
  command
      .add_option("-s,--set", options.assignments,
                  "key=value on top of FILE, or of the running policy; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_apply_options(CLI::App& command, Options& options) {
  command.add_flag("--lossy", options.lossy,
                   "Compress also what travels exactly now; at a terminal you are asked");
  command.add_option("--reason", options.reason, "Why, for the log, the audit log and the history");
  command
      .add_option(
          "--wait", options.wait_s,
          "Seconds to wait until the plan is in force, and say so; default: 30; 0 or -o json: not "
          "at all")
      ->check(check_seconds, "");
}

namespace {

void add_apply(CLI::App& policy, Options& options, const Environment& environment, Run& run) {
  CLI::App& apply = *policy.add_subcommand(
      "apply", "Change the policy; prints the step at which it takes effect on every rank");
  add_change(apply, options);
  apply.add_option("--expected-version", options.expected_version,
                   "Refuse if the running policy has another version");
  add_apply_options(apply, options);
  apply.callback(
      [&options, &environment, &run] { run = [&] { return apply_policy(options, environment); }; });
}

void add_history(CLI::App& policy, Options& options, const Environment& environment, Run& run) {
  CLI::App& history =
      *policy.add_subcommand("history", "Policies that were in force: who set them, and when");
  add_target(history, options);
  history.callback([&options, &environment, &run] {
    run = [&] {
      return read(options, environment, targeted<v1::GetPolicyRequest>(options),
                  &v1::Control::Stub::GetPolicyHistory);
    };
  });
  CLI::App& back = *policy.add_subcommand("rollback", "Apply an earlier policy of the history");
  add_target(back, options);
  back.add_option("VERSION", options.version, "1: the configured one; default: the one before");
  add_apply_options(back, options);
  back.callback(
      [&options, &environment, &run] { run = [&] { return rollback(options, environment); }; });
}

}  // namespace

void add_policy_commands(CLI::App& app, Options& options, const Environment& environment,
                         Run& run) {
  CLI::App& policy = *app.add_subcommand("policy", "See and change how gradients travel");
  policy.require_subcommand(1);
  CLI::App& get = *policy.add_subcommand("get", "Print the running policy as a file");
  add_target(get, options);
  get.callback([&options, &environment, &run] {
    run = [&] {
      return read(options, environment, targeted<v1::GetPolicyRequest>(options),
                  &v1::Control::Stub::GetPolicy);
    };
  });
  CLI::App& check = *policy.add_subcommand(
      "check", "What a policy would change, and whether every machine would accept it");
  add_change(check, options);
  check.callback([&options, &environment, &run] {
    run = [&] { return ask(options, environment, &v1::Control::Stub::CheckPolicy, show_check); };
  });
  CLI::App& diff = *policy.add_subcommand("diff", "Compare a policy with the running one");
  add_change(diff, options);
  diff.callback([&options, &environment, &run] {
    run = [&] {
      return ask<v1::PolicyDiff>(options, environment, &v1::Control::Stub::DiffPolicy, show);
    };
  });
  add_apply(policy, options, environment, run);
  add_history(policy, options, environment, run);
}

}  // namespace cgx::ctl
