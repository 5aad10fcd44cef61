// What the command line says. Thread rule: main.
#pragma once

#include <string>
#include <vector>

namespace cgx::daemon {

struct CommandLine {
  enum class Action : unsigned char { kServe, kRun, kCheckConfig, kPrintConfig, kDrain, kExit };
  Action action = Action::kServe;
  int exit_code = 0;                     // kExit: help or version was shown, or the usage is wrong
  std::string config;                    // empty: none
  std::vector<std::string> assignments;  // --set key=value (and --network), after the file
  std::string socket;                    // empty: the configuration's
  std::string drain_limit;               // kDrain: seconds; empty: the running daemon's
  bool private_daemon = false;           // ends when its last session has gone, or none came
  std::string record_plans, replay_plans;  // files; empty: no
  std::vector<std::string> command;        // kRun
};

CommandLine parse_command_line(int argc, char** argv);

}  // namespace cgx::daemon
