#include "daemon/command_line.h"

#include <CLI/CLI.hpp>

#include "config/config.h"
#include "config/usage.h"
#include "daemon/mesh/mesh_handshake.h"
#include "daemon/options.h"
#include "proto/wire/frame.h"
#include "proto/wire/revision.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/shm_layout.h"

namespace cgx::daemon {
namespace {

constexpr int kUsageError = 2;
constexpr const char kAbout[] =
    "One daemon per machine that makes distributed training fast on ordinary networks.\n"
    "Without options it serves the trainers of this machine. The keys of its configuration are at "
    "the end of --help.";

std::string configuration_help() {
  return "\nConfiguration (YAML file, or --set key=value):\n" +
         config::help_text(v1::Config::default_instance());
}

// What must be equal on both sides of an edge, by number.
std::string about_text() {
  return program_text("cgxd", version_number()) + "\nspeaks frame " +
         std::to_string(wire::kFrameVersion) + ", mesh " + std::to_string(kMeshVersion) +
         ", session " + std::to_string(wire::kSessionVersion) + ", shared memory " +
         std::to_string(CGX_SHM_VERSION) + ", control " +
         v1::Config::descriptor()->file()->package();
}

using Words = std::vector<std::string>;

void append(const Words& more, Words& words) {
  words.insert(words.end(), more.begin(), more.end());
}

// Before and after `run`, of which neither wins: a word that differs from the first is an error.
CLI::Option* add_once(CLI::App& app, const std::string& name, std::string& value,
                      const std::string& help) {
  return app.add_option_function<std::string>(
      name,
      [name, &value](const std::string& given) {
        if (!value.empty() && given != value) {
          throw CLI::ValidationError(name, "is given twice, as " + value + " and as " + given);
        }
        value = given;
      },
      help);
}

// Before and after `run`: what may be repeated adds up.
void add_common(CLI::App& app, CommandLine& line, Words& networks) {
  add_once(app, "--config", line.config, "configuration file (YAML)")->check(CLI::ExistingFile);
  app.add_option_function<Words>(
         "--set", [&line](const Words& more) { append(more, line.assignments); },
         "sets one key, in place of the file's value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option_function<Words>(
         "--network", [&networks](const Words& more) { append(more, networks); },
         "network shared with the other machines, e.g. 10.1.0.0/24: as the key mesh.network")
      ->type_name("CIDR")
      ->delimiter(',');
  add_once(
      app, "--record-plans", line.record_plans,
      "write the plans of jobs coordinated here into this new file; where it is there already, "
      "into FILE.1, FILE.2 ...");
  add_once(app, "--replay-plans", line.replay_plans,
           "follow the plans of such a file: equal runs then give equal bits")
      ->check(CLI::ExistingFile);
}

std::string network_assignment(const Words& networks) {
  std::string list;
  for (const std::string& each : networks) list += (list.empty() ? "" : ", ") + each;
  return "mesh.network=[" + list + "]";
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  CLI::App app(kAbout, "cgxd");
  app.footer(configuration_help);
  app.failure_message(config::usage_message);
  app.set_version_flag("--version", about_text(),
                       "Print version, revision and the formats spoken, and exit");
  Words networks;
  add_common(app, line, networks);
  std::string check;
  CLI::Option* checks =
      app.add_option("--check-config", check,
                     "check the configuration (this file, or --config's) and that this machine has "
                     "the files, "
                     "groups, devices and addresses it names; print it with all defaults and exit")
          ->expected(0, 1);
  bool print = false;
  app.add_flag("--print-config", print, "print the configuration with all defaults and exit");
  CLI::Option* drains =
      app.add_option(
             "--drain", line.drain_limit,
             "end the daemon that runs with this configuration, and wait for that: its jobs "
             "leave between two steps, within so many seconds (timeouts.drain_ms)")
          ->type_name("SECONDS")
          ->check(
              [](const std::string& text) {  // CLI11's own message has the 309 digits of its limit
                const bool fits = CLI::NonNegativeNumber(std::string(text)).empty();
                return fits ? "" : text + " is no number of seconds, 0 or more";
              },
              "NONNEGATIVE")
          ->expected(0, 1);
  CLI::Option* socket = app.add_option("--socket", line.socket,
                                       "Unix socket for trainers, in place of the configuration's");
  CLI::Option* ends = app.add_flag("--private", line.private_daemon,
                                   "end when the last session has gone, or none came within 60 s");
  CLI::App* run = app.add_subcommand("run", "run a training command with a daemon of its own");
  add_common(*run, line, networks);
  run->add_option("command", line.command, "the command and its arguments, after --")->required();
  run->positionals_at_end();
  run->excludes(socket)->excludes(ends);  // it has a socket of its own, and its command's life
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    line.action = CommandLine::Action::kExit;
    line.exit_code = app.exit(error) == 0 ? 0 : kUsageError;
    return line;
  }
  if (!networks.empty()) line.assignments.push_back(network_assignment(networks));
  if (!check.empty()) line.config = check;
  line.action = checks->count() > 0   ? CommandLine::Action::kCheckConfig
                : print               ? CommandLine::Action::kPrintConfig
                : drains->count() > 0 ? CommandLine::Action::kDrain
                : run->parsed()       ? CommandLine::Action::kRun
                                      : CommandLine::Action::kServe;
  return line;
}

}  // namespace cgx::daemon
