// `cgxd run -- COMMAND`: the training command beside the daemon.
// Thread rule: main. SIGCHLD and the forwarded signals must be blocked in every thread.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::daemon {

class RunCommand {
 public:
  // Starts it with `variables` ("NAME=value") over its environment and no signal blocked.
  static Result<RunCommand> start(const std::vector<std::string>& arguments,
                                  const std::vector<std::string>& variables);

  // Signals the command should see too. The terminal sends its own to the whole foreground group:
  // those have reached the command already.
  static const std::vector<int>& forwarded();
  void forward(const siginfo_t& signal) const;

  // The exit status (128 + signal if it was killed) once it has ended. Call after SIGCHLD.
  std::optional<int> ended();

 private:
  explicit RunCommand(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

}  // namespace cgx::daemon
