// Runs the real cgxctl and keeps what it said.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace cgx::ctl {

struct Ran {
  int code = -1;
  std::string out, err;
};

struct RunAs {
  uid_t uid = geteuid();
  std::vector<std::string> environment;
  bool ignores_children = false;  // as some parents leave it
};

inline std::string slurp(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

// The program is opened first and run from its descriptor: another user may not reach its folder.
inline Ran run_ctl(const std::vector<std::string>& arguments, const RunAs& as = {}) {
  const int program = ::open(CGX_CTL, O_RDONLY | O_CLOEXEC);
  const int out = ::memfd_create("out", MFD_CLOEXEC), err = ::memfd_create("err", MFD_CLOEXEC);
  std::vector<char*> argv{const_cast<char*>("cgxctl")}, envp;
  for (const std::string& one : arguments) argv.push_back(const_cast<char*>(one.c_str()));
  for (const std::string& one : as.environment) envp.push_back(const_cast<char*>(one.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    if (as.ignores_children) ::signal(SIGCHLD, SIG_IGN);
    if (as.uid != geteuid() && ::setresuid(as.uid, as.uid, as.uid) != 0) ::_exit(125);
    ::fexecve(program, argv.data(), envp.data());
    ::_exit(126);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const Ran ran{WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(out), slurp(err)};
  for (int fd : {program, out, err}) ::close(fd);
  return ran;
}

}  // namespace cgx::ctl
