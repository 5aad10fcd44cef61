#include "daemon/run_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "daemon/base/spawn.h"

extern char** environ;

namespace cgx::daemon {
namespace {

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> result = variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view old(*each);
    const std::string_view name = old.substr(0, old.find('=') + 1);
    const bool replaced = std::any_of(variables.begin(), variables.end(),
                                      [&](const auto& made) { return made.starts_with(name); });
    if (!replaced) result.emplace_back(old);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

const std::vector<int>& RunCommand::forwarded() {
  static const std::vector<int> kSignals = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                            SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
  return kSignals;
}

Result<RunCommand> RunCommand::start(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& variables) {
  std::vector<std::string> words = arguments, environment = environment_with(variables);
  const SpawnAttributes attributes;
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, words[0].c_str(), nullptr, attributes.get(),
                                   pointers(words).data(), pointers(environment).data());
  if (error == 0) return RunCommand(pid);
  const bool missing = error == ENOENT || error == ENOTDIR;
  return Status(missing ? StatusCode::kNOT_FOUND : StatusCode::kPERMISSION_DENIED,
                "cannot run " + words[0] + ": " + std::strerror(error));
}

void RunCommand::forward(const siginfo_t& signal) const {
  const bool from_terminal = signal.si_code == SI_KERNEL;
  if (!from_terminal) ::kill(pid_, signal.si_signo);
}

std::optional<int> RunCommand::ended() {
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended < 0 && errno == ECHILD) return 1;  // how it ended was told somebody else
  if (ended != pid_) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace cgx::daemon
