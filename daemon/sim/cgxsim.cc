// cgxsim: what training would cost under policies, on paper. Exit status: 0 done, 1 an error named
// on standard error, or a published figure is missed; 2 wrong usage.
#include <cstdio>
#include <fstream>

#include "config/config.h"
#include "daemon/sim/sim_options.h"
#include "daemon/sim/sim_report.h"
#include "scheduler/sim/pictures.h"
#include "scheduler/sim/published.h"

namespace cgx::daemon {
namespace {

namespace sim = scheduler::sim;

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.good()) return {};
  return Status(StatusCode::kUNAVAILABLE, "cannot write " + path);
}

Status show(const std::string& text) {
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? Status() : Status(StatusCode::kUNAVAILABLE, "cannot write the answer");
}

void warn(const NamedPolicy& policy, const std::string& text) {
  std::fprintf(stderr, "cgxsim: %s: %s\n", policy.name.c_str(), text.c_str());
}

Result<sim::Run> run_by(const std::string& planner, const NamedPolicy& policy,
                        const SimOptions& options, const sim::Scene& scene) {
  CGX_ASSIGN_OR_RETURN(const scheduler::Planner how, scheduler::planner_of(planner));
  const bool other = sim::planner_for(policy.policy.mode) != how;
  if (other && policy.says_mode) {
    const std::string mode = scheduler::kPlanModes[static_cast<size_t>(policy.policy.mode)];
    warn(policy, "the policy says mode " + mode + " and --planner says " + planner +
                     ": --planner goes first");
  }
  CGX_ASSIGN_OR_RETURN(sim::Run run, sim::run(scene, policy.policy, how, core_of(options)));
  run.name = policy.name + (other ? ", " + planner : "");
  return run;
}

// Every policy as its mode plans, or under every planner that is named.
Result<std::vector<sim::Run>> runs_of(const SimOptions& options, const sim::Scene& scene) {
  CGX_ASSIGN_OR_RETURN(const std::vector<NamedPolicy> policies, policies_of(options));
  std::vector<sim::Run> runs;
  for (const NamedPolicy& each : policies) {
    for (const std::string& warning : each.warnings) warn(each, warning);
    if (options.planners.empty()) {
      CGX_ASSIGN_OR_RETURN(sim::Run run, sim::run(scene, each.policy, {}, core_of(options)));
      run.name = each.name;
      runs.push_back(std::move(run));
    }
    for (const std::string& planner : options.planners) {
      CGX_ASSIGN_OR_RETURN(sim::Run run, run_by(planner, each, options, scene));
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

Status draw(const SimOptions& options, const sim::Model& model, std::span<const sim::Run> runs) {
  if (!options.trace.empty()) {
    CGX_RETURN_IF_ERROR(write_file(options.trace, sim::chrome_trace(runs, model.table)));
  }
  if (options.svg.empty()) return {};
  const std::string title = model.name + ", " + std::to_string(options.machines) + " machines, " +
                            options.link + ": one step on paper";
  return write_file(options.svg, sim::svg_picture(runs, model, title));
}

Status compare(const SimOptions& options) {
  CGX_ASSIGN_OR_RETURN(const sim::Model model, model_of(options));
  if (options.print_model) return show(sim::print_model(model));
  CGX_ASSIGN_OR_RETURN(scheduler::Conditions conditions, conditions_of(options));
  const sim::Scene scene{model, options.machines, std::move(conditions)};
  CGX_ASSIGN_OR_RETURN(const std::vector<sim::Run> runs, runs_of(options, scene));
  CGX_RETURN_IF_ERROR(
      show(options.json ? runs_json(options, runs) : scene_text(options, scene) + runs_text(runs)));
  return draw(options, model, runs);
}

Status validate(const SimOptions& options) {
  CGX_ASSIGN_OR_RETURN(const std::string text, config::read_file(options.validate));
  CGX_ASSIGN_OR_RETURN(const sim::Validation done, sim::validate(text, options.validate));
  CGX_RETURN_IF_ERROR(show(options.json ? validation_json(done) : validation_text(done)));
  for (const sim::PublishedRow& row : done.rows) {
    if (!row.holds()) return Status(StatusCode::kMISMATCH, row.id + " is outside its tolerance");
  }
  return {};
}

int main_of(int argc, char** argv) {
  const SimOptions options = parse_sim_options(argc, argv);
  if (options.ends) return options.exit_code;
  const Status status = options.validate.empty() ? compare(options) : validate(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cgxsim: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace cgx::daemon

int main(int argc, char** argv) {
  return cgx::daemon::main_of(argc, argv);
}
