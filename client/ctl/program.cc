#include "client/ctl/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

extern char** environ;

namespace cgx::ctl {
namespace {

// What was written into a file in memory.
std::string take(int fd) {
  std::string text;
  char piece[4096];
  for (ssize_t bytes;
       (bytes = ::pread(fd, piece, sizeof piece, static_cast<off_t>(text.size()))) > 0;) {
    text.append(piece, static_cast<size_t>(bytes));
  }
  ::close(fd);
  return text;
}

}  // namespace

Result<Ended> run_program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int out = ::memfd_create("out", MFD_CLOEXEC), error = ::memfd_create("error", MFD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, error, STDERR_FILENO);
  pid_t pid = -1;
  const int code = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  pid_t waited = -1;
  while (code == 0 && (waited = ::waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  Ended ended{.out = take(out), .error = take(error)};
  if (code != 0) return Status(StatusCode::kUNAVAILABLE, command[0] + ": " + std::strerror(code));
  if (waited != pid) return Status(StatusCode::kUNAVAILABLE, command[0] + ": its end is not known");
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

std::string daemon_program() {
  std::error_code ignored;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path beside = own.parent_path() / "cgxd";
  return ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "cgxd";
}

}  // namespace cgx::ctl
