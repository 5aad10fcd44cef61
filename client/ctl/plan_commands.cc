#include "client/ctl/plan_commands.h"

#include <algorithm>
#include <cctype>

#include "client/ctl/policy_commands.h"

namespace cgx::ctl {
namespace {

// A pin is a rule for one name, in front of all others: it needs no key of its own, survives in
// files, and every planner keeps to it.
std::string pattern_of(const std::string& tensor) {
  std::string pattern = "^";
  for (const char c : tensor) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0;
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

const v1::Tensor* find(const v1::TensorList& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.tensors().begin(), tensors.tensors().end(),
                                  [&](const v1::Tensor& one) { return one.name() == name; });
  return found == tensors.tensors().end() ? nullptr : &*found;
}

// The running policy, to be changed if nobody changes it meanwhile.
int begin_change(const Options& options, Caller& caller, v1::ChangePolicyRequest& request) {
  v1::CurrentPolicy current;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::GetPolicy, targeted<v1::GetPolicyRequest>(options), current,
                  kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  *request.mutable_target() = target_of(options);
  *request.mutable_policy() = current.policy();
  request.set_expected_version(current.version());
  return kOk;
}

constexpr char kByType[] = "not a small float type";  // the reason that the daemon says

// True: there was one.
bool take_out(v1::Policy& policy, const std::string& pattern) {
  auto& rules = *policy.mutable_rules();
  const auto gone = std::find_if(rules.begin(), rules.end(),
                                 [&](const v1::Rule& rule) { return rule.match() == pattern; });
  if (gone == rules.end()) return false;
  rules.erase(gone);
  return true;
}

int apply(const Options& options, Caller& caller, v1::ChangePolicyRequest& request,
          const std::string& what) {
  request.set_no_rules(request.policy().rules_size() == 0);
  request.set_reason(options.reason.empty() ? what : options.reason);
  return apply_request(options, caller, request);
}

// Why a pin may not go before what decides the tensor now; empty: it may.
std::string contradiction(const Options& options, const v1::Tensor& tensor) {
  if (tensor.reason() == kByType) {
    return tensor.name() + " is of type " + tensor.dtype() +
           ", which no codec takes: it travels as it is";
  }
  const bool ruled = tensor.reason().starts_with("rule ");
  if (!ruled || options.over_rules || tensor.reason().ends_with(": " + pattern_of(tensor.name()))) {
    return "";
  }
  return "the pin of " + tensor.name() + " to " + options.codec + " contradicts " +
         tensor.reason() + ", which says " + tensor.codec() +
         "; change that rule, or let the pin go before it with --over-rules";
}

template <typename Act>
int with_tensor(const Options& options, const Environment& environment, Act act) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::TensorList tensors;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::ListTensors, targeted<v1::ListTensorsRequest>(options),
                  tensors, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const v1::Tensor* const tensor = find(tensors, options.tensor);
  if (tensor == nullptr) {
    return fail(kError, "no tensor " + options.tensor + " among the " +
                            std::to_string(tensors.tensors_size()) +
                            " of the communicator; cgxctl tensors lists them");
  }
  return act(caller, *tensor);
}

template <typename Change>
int change_policy(const Options& options, const Environment& environment, Change change) {
  return with_tensor(options, environment, [&](Caller& caller, const v1::Tensor& tensor) {
    v1::ChangePolicyRequest request;
    const int code = begin_change(options, caller, request);
    return code != kOk ? code : change(caller, tensor, request);
  });
}

int pin(const Options& options, const Environment& environment) {
  return change_policy(
      options, environment,
      [&](Caller& caller, const v1::Tensor& tensor, v1::ChangePolicyRequest& request) {
        const std::string wrong = contradiction(options, tensor);
        if (!wrong.empty()) return fail(kError, wrong);
        v1::Policy& policy = *request.mutable_policy();
        const std::string pattern = pattern_of(tensor.name());
        take_out(policy, pattern);
        v1::Rule* const rule = policy.add_rules();
        rule->set_match(pattern);
        rule->set_codec(options.codec);
        rule->set_small(true);
        auto& rules = *policy.mutable_rules();
        std::rotate(rules.begin(), rules.end() - 1, rules.end());
        return apply(options, caller, request, "pin " + tensor.name() + " to " + options.codec);
      });
}

int unpin(const Options& options, const Environment& environment) {
  return change_policy(
      options, environment,
      [&](Caller& caller, const v1::Tensor& tensor, v1::ChangePolicyRequest& request) {
        if (!take_out(*request.mutable_policy(), pattern_of(tensor.name()))) {
          return fail(kError, tensor.name() + " is not pinned: its codec is " + tensor.codec() +
                                  ", by " + tensor.reason());
        }
        return apply(options, caller, request, "unpin " + tensor.name());
      });
}

int explain(const Options& options, const Environment& environment) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::JobList jobs;
  grpc::Status status = caller.call(&v1::Control::Stub::ListJobs,
                                    targeted<v1::ListJobsRequest>(options), jobs, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  v1::ExplainTensorRequest request = targeted<v1::ExplainTensorRequest>(options);
  request.set_tensor(options.tensor);
  v1::TensorExplanation explanation;
  status = caller.call(&v1::Control::Stub::ExplainTensor, request, explanation, kChangeTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  const v1::Communicator* const found = only_one(jobs);
  if (found == nullptr) return fail(kError, "the communicator has ended");
  return print(explanation, options,
               [&](const v1::TensorExplanation& shown) { return show_explanation(shown, *found); });
}

// Under the running policy, unless a file or --set says another.
int simulate(const Options& options, const Environment& environment) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::SimulatePlanRequest request = targeted<v1::SimulatePlanRequest>(options);
  request.set_machines(options.machines);
  if (!options.policy_file.empty() || !options.assignments.empty()) {
    v1::ChangePolicyRequest wanted;
    if (const int code = prepare_change(options, caller, wanted); code != kOk) return code;
    *request.mutable_policy() = wanted.policy();
    request.set_no_rules(wanted.no_rules());
  }
  v1::SimulatedPlan answer;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::SimulatePlan, request, answer, kChangeTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  return print(answer, options, show_simulated);
}

int profile(const Options& options, const Environment& environment) {
  if (options.model && options.output == "json") {
    return fail(kUsage, "--model prints a file for cgxsim, which is no JSON");
  }
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  v1::JobProfile answer;
  const grpc::Status status =
      caller.call(&v1::Control::Stub::GetJobProfile, targeted<v1::GetJobProfileRequest>(options),
                  answer, kChangeTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  return print(answer, options, options.model ? show_model : show_profile);
}

void add_profile(CLI::App& plan, Options& options, const Environment& environment, Run& run) {
  CLI::App& profiling = *plan.add_subcommand(
      "profile", "What was measured of the running job: steps, codecs, the link, gradients");
  add_target(profiling, options);
  profiling.add_flag("--model", options.model,
                     "Print tensors and gaps between their gradients as a file for cgxsim --model");
  profiling.callback(
      [&options, &environment, &run] { run = [&] { return profile(options, environment); }; });
}

void add_explain(CLI::App& plan, Options& options, const Environment& environment, Run& run) {
  CLI::App& explaining = *plan.add_subcommand(
      "explain", "Why a tensor travels as it does, what that costs, and what the next best would");
  add_target(explaining, options);
  explaining.add_option("TENSOR", options.tensor, "Full name of the tensor")->required();
  explaining.callback(
      [&options, &environment, &run] { run = [&] { return explain(options, environment); }; });
}

void add_simulate(CLI::App& plan, Options& options, const Environment& environment, Run& run) {
  CLI::App& simulating = *plan.add_subcommand(
      "simulate", "What a step of the running job would take under a policy, or on more machines");
  add_change(simulating, options);
  simulating.add_option("--machines", options.machines,
                        "Number of machines; default: as many as the job has");
  simulating.callback(
      [&options, &environment, &run] { run = [&] { return simulate(options, environment); }; });
}

void add_pins(CLI::App& plan, Options& options, const Environment& environment, Run& run) {
  CLI::App& pinning =
      *plan.add_subcommand("pin", "Fix a tensor's codec by name: planners and rules keep to it");
  CLI::App& unpinning = *plan.add_subcommand("unpin", "Let rules and planners decide again");
  for (CLI::App* const each : {&pinning, &unpinning}) {
    add_target(*each, options);
    each->add_option("TENSOR", options.tensor, "Full name of the tensor")->required();
  }
  pinning.add_option("CODEC", options.codec, "As in a policy: fp32, maxmin:8, ...")->required();
  pinning.add_flag("--over-rules", options.over_rules, "Also where a rule says otherwise");
  for (CLI::App* const each : {&pinning, &unpinning}) add_apply_options(*each, options);
  pinning.callback(
      [&options, &environment, &run] { run = [&] { return pin(options, environment); }; });
  unpinning.callback(
      [&options, &environment, &run] { run = [&] { return unpin(options, environment); }; });
}

}  // namespace

void add_plan_commands(CLI::App& app, Options& options, const Environment& environment, Run& run) {
  CLI::App& plan = *app.add_subcommand(
      "plan", "What travels together, what was tried, and tensors fixed by name");
  plan.require_subcommand(1);
  const auto command = [&](const char* name, const char* help,
                           std::string (*text)(const v1::JobList&)) {
    CLI::App& added = *plan.add_subcommand(name, help);
    add_target(added, options);
    added.callback([&options, &environment, &run, text] {
      run = [&options, &environment, text] {
        return read(options, environment, targeted<v1::ListJobsRequest>(options),
                    &v1::Control::Stub::ListJobs, text);
      };
    });
  };
  command("show", "The groups of the plan that runs", show_plans);
  command("history",
          "Plans that took force, who wanted them and why; what was tried: predicted, measured, "
          "verdict; and ceilings that were set",
          show_searches);
  add_profile(plan, options, environment, run);
  add_explain(plan, options, environment, run);
  add_simulate(plan, options, environment, run);
  add_pins(plan, options, environment, run);
}

}  // namespace cgx::ctl
