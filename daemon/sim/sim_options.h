// The command line of cgxsim. Thread rule: main.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "scheduler/sim/run.h"

namespace cgx::daemon {

struct SimOptions {
  bool ends = false;  // help or version was shown, or the usage is wrong
  int exit_code = 0;

  std::string model = "resnet50";
  uint32_t machines = 2;
  std::string link = "10gbit", latency = "50us";
  std::vector<std::string> policies;
  std::vector<std::string> planners;  // none: as each policy's mode says
  double batch = 0, tflops = 10, share = 0;
  std::string costs, lane;  // empty: built in, the best
  std::string core = "auto";
  std::string trace, svg;  // files to write; empty: none
  std::string validate;
  bool print_model = false, json = false;
};
SimOptions parse_sim_options(int argc, char** argv);

// What the options name, read and checked.
Result<scheduler::sim::Model> model_of(const SimOptions& options);
Result<scheduler::Conditions> conditions_of(const SimOptions& options);
scheduler::sim::Core core_of(const SimOptions& options);

struct NamedPolicy {
  std::string name;
  scheduler::Policy policy;
  bool says_mode = false;  // else it is the default one
  std::vector<std::string> warnings;
};
Result<std::vector<NamedPolicy>> policies_of(const SimOptions& options);

}  // namespace cgx::daemon
