#include "daemon/sim/sim_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "config/config.h"
#include "config/usage.h"
#include "daemon/policy/policy_message.h"
#include "proto/wire/revision.h"
#include "scheduler/sim/cost_file.h"
#include "scheduler/sim/lines.h"

namespace cgx::daemon {
namespace {

namespace sim = scheduler::sim;

constexpr int kUsageError = 2;
constexpr const char kAbout[] =
    "Says on paper how long a training step takes under policies, before there are machines.\n"
    "The plans are those that cgxd would make, and their bytes are counted in its own frames. Time "
    "is virtual, and work takes what a table says. Nothing is sent, nothing is measured.";

void add_scene(CLI::App& app, SimOptions& options) {
  app.add_option("-m,--model", options.model,
                 "an architecture (" + sim::architecture_names() +
                     ") or a file that lists tensors, as cgxctl plan profile --model writes one of "
                     "a running job; without it resnet50");
  app.add_option("-n,--machines", options.machines, "machines, with one rank each; 2 without it")
      ->check(CLI::Range(1u, 1024u))
      ->type_name("NUMBER");
  app.add_option("-l,--link", options.link,
                 "rate of each machine's link: 25gbit, 500mbit; 10gbit without it")
      ->type_name("RATE");
  app.add_option("--latency", options.latency,
                 "latency of one trip, wake-up of the receiver included; 50us without it")
      ->type_name("TIME");
  app.add_option("--batch", options.batch,
                 "samples each machine computes in a step; without it the architecture's")
      ->check(CLI::PositiveNumber)
      ->type_name("NUMBER");
  app.add_option("--tflops", options.tflops,
                 "what a trainer sustains, for gaps between gradients; 10 without it")
      ->check(CLI::PositiveNumber)
      ->type_name("NUMBER");
  app.add_option("--share", options.share,
                 "share of the daemon's processor time that is taken from the trainers: 0 with "
                 "idle cores, 1 without")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("NUMBER");
  app.add_option("--costs", options.costs,
                 "file with what codecs cost, as bench_codec_cost writes it")
      ->check(CLI::ExistingFile);
  app.add_option("--lane", options.lane, "arithmetic of that table: avx512, avx2, scalar");
}

void add_work(CLI::App& app, SimOptions& options) {
  app.add_option(
         "-p,--policy", options.policies,
         "keys of a policy as YAML (codec: maxmin:4), or its file, or a mode alone (auto, merge, "
         "fixed); may be repeated. Without it: the default, and codec: fp32")
      ->allow_extra_args(false)
      ->type_name("POLICY");
  app.add_option("--planner", options.planners,
#define X(name, help) #name ": " help "; "
#include "scheduler/planners/planners.def"
#undef X
                 "may be repeated. It goes before the policy's mode; without it fixed for mode "
                 "fixed, choose for auto, and for merge the search for how much travels together")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(std::vector<std::string>{
#define X(name, help) #name,
#include "scheduler/planners/planners.def"
#undef X
      }));
  app.add_option("--core", options.core,
                 "what computes the step: engines, those of cgxd, frame by frame, up to " +
                     std::to_string(sim::kEnginesMax) +
                     " machines; timeline: the model that mode auto plans with; auto: engines "
                     "where that takes seconds; auto without it")
      ->check(CLI::IsMember({"auto", "engines", "timeline"}));
  app.add_option("--trace", options.trace, "write a Chrome trace of the lanes into this file");
  app.add_option("--svg", options.svg, "write a picture of the lanes into this file");
  app.add_flag("--json", options.json, "print JSON");
  app.add_flag("--print-model", options.print_model,
               "print the model as --model reads it, and exit");
  app.add_option("--validate", options.validate,
                 "compare the model with the published figures in this file, and exit")
      ->check(CLI::ExistingFile);
}

// Also of a text that is no path: it may be too long for one.
bool is_file(const std::string& text) {
  std::error_code not_one;
  return std::filesystem::is_regular_file(text, not_one);
}

Result<std::string> file_text(const std::string& path) {
  return config::read_file(path);
}

bool is_mode(const std::string& text) {
  const auto& modes = scheduler::kPlanModes;
  return std::find(std::begin(modes), std::end(modes), text) != std::end(modes);
}

std::string mode_names() {
  std::string names;
  for (const char* const mode : scheduler::kPlanModes) {
    names.append(names.empty() ? "" : ", ").append(mode);
  }
  return names;
}

Status load_policy(const std::string& text, v1::Policy& message) {
  if (is_mode(text)) {
    message.set_mode(text);
    return {};
  }
  if (is_file(text)) return config::load_file(text, config_checks(), message);
  const bool one_word = !text.empty() && text.find_first_of(":{[#\n ") == std::string::npos;
  if (one_word) {
    return invalid_argument("--policy: \"" + text +
                            "\" is neither keys (codec: maxmin:4), nor "
                            "a file, nor a mode (" +
                            mode_names() + ")");
  }
  return config::load_text(text, "--policy", config_checks(), message);
}

Result<NamedPolicy> policy_of(const std::string& text) {
  v1::Policy message;
  CGX_RETURN_IF_ERROR(load_policy(text, message));
  CGX_ASSIGN_OR_RETURN(CheckedPolicy checked, check_policy(message));
  NamedPolicy named{text, std::move(checked.plain), message.has_mode(),
                    std::move(checked.warnings)};
  if (named.policy.ceilings != scheduler::CeilingPlanner::kpolicy) {
    named.warnings.push_back("ceilings " + message.ceilings() +
                             " needs gradients to measure, and on paper there are none: codec is "
                             "the ceiling of all tensors");
  }
  return named;
}

}  // namespace

SimOptions parse_sim_options(int argc, char** argv) {
  SimOptions options;
  CLI::App app(kAbout, "cgxsim");
  app.set_version_flag("--version", program_text("cgxsim", CGX_VERSION),
                       "Print version and revision, and exit");
  app.failure_message(config::usage_message);
  add_scene(app, options);
  add_work(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    options.ends = true;
    options.exit_code = app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (options.policies.empty()) options.policies = {"{}", "codec: fp32"};
  return options;
}

Result<sim::Model> model_of(const SimOptions& options) {
  const sim::Trainer trainer{.batch = options.batch, .flops_per_ns = options.tflops * 1e3};
  Result<sim::Model> model = sim::make_model(options.model, trainer);
  if (model.ok() || !is_file(options.model)) {
    if (model.ok()) return model;
    return Status(model.status().code(), model.status().message() + ", and no file has that name");
  }
  CGX_ASSIGN_OR_RETURN(const std::string text, file_text(options.model));
  return sim::parse_model(text, options.model);
}

Result<scheduler::Conditions> conditions_of(const SimOptions& options) {
  scheduler::Conditions conditions{.share = options.share};
  std::string text(sim::builtin_costs()), name = "the built-in costs";
  if (!options.costs.empty()) {
    name = options.costs;
    CGX_ASSIGN_OR_RETURN(text, file_text(name));
  }
  CGX_ASSIGN_OR_RETURN(conditions.costs, sim::parse_costs(text, name, options.lane));
  const Result<double> rate = sim::parse_rate(options.link);
  if (!rate.ok()) return invalid_argument("--link: " + rate.status().message());
  const Result<double> latency = sim::parse_time_ns(options.latency);
  if (!latency.ok()) return invalid_argument("--latency: " + latency.status().message());
  conditions.link = {.ns_per_byte = *rate, .trip_ns = *latency};
  return conditions;
}

sim::Core core_of(const SimOptions& options) {
  if (options.core == "engines") return sim::Core::kEngines;
  return options.core == "timeline" ? sim::Core::kTimeline : sim::Core::kAuto;
}

Result<std::vector<NamedPolicy>> policies_of(const SimOptions& options) {
  std::vector<NamedPolicy> policies;
  for (const std::string& text : options.policies) {
    CGX_ASSIGN_OR_RETURN(NamedPolicy policy, policy_of(text));
    if (text == "{}") policy.name = "default";
    policies.push_back(std::move(policy));
  }
  return policies;
}

}  // namespace cgx::daemon
