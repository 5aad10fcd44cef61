#include "tests/gpu/roles.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace cgx::gpu {
namespace {

constexpr std::chrono::seconds kPatience(20);

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> known;
  return known;
}

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "between two processes: %s\n", what);
  _exit(90);
}

// In the child, after fork: nothing but system calls.
[[noreturn]] void become(const std::vector<std::string>& words, int errors) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  dup2(errors, STDERR_FILENO);
  execv("/proc/self/exe", arguments.data());
  _exit(91);
}

}  // namespace

Channel::~Channel() {
  close(fd_);
}

void Channel::send_bytes(const void* from, size_t bytes) {
  if (::send(fd_, from, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) give_up("send");
}

void Channel::receive_bytes(void* to, size_t bytes) {
  pollfd waiting = {fd_, POLLIN, 0};
  const int patience_ms = std::chrono::milliseconds(kPatience).count();
  if (poll(&waiting, 1, patience_ms) != 1) give_up("nothing came");
  if (recv(fd_, to, bytes, 0) != static_cast<ssize_t>(bytes)) give_up("the other end is closed");
}

void Channel::send_descriptor(int fd) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  if (sendmsg(fd_, &message, MSG_NOSIGNAL) != 1) give_up("sending a descriptor");
}

int Channel::receive_descriptor() {
  char byte;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(fd_, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) {
    give_up("receiving a descriptor");
  }
  int fd;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  return fd;
}

bool add_role(const char* name, Role role) {
  return roles().emplace(name, role).second;
}

int play_role(int argc, char** argv) {
  if (argc != 4 || std::strcmp(argv[1], "--role") != 0) return -1;
  const auto found = roles().find(argv[2]);
  if (found == roles().end()) give_up("no such role");
  Channel parent(std::atoi(argv[3]));
  return found->second(parent);
}

Child::Child(const char* role, const char* standin) {
  int ends[2], pipes[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) give_up("socketpair");
  if (pipe2(pipes, O_CLOEXEC) != 0) give_up("pipe");
  const int inherited = fcntl(ends[1], F_DUPFD, 100);  // without CLOEXEC
  const char* const before = std::getenv("CGX_STANDIN");
  const std::string kept = before == nullptr ? "" : before;
  if (standin != nullptr) setenv("CGX_STANDIN", standin, 1);
  const std::vector<std::string> words = {"child", "--role", role, std::to_string(inherited)};
  pid_ = fork();
  if (pid_ == 0) become(words, pipes[1]);
  if (standin != nullptr && before != nullptr) setenv("CGX_STANDIN", kept.c_str(), 1);
  if (standin != nullptr && before == nullptr) unsetenv("CGX_STANDIN");
  close(inherited);
  close(ends[1]);
  close(pipes[1]);
  errors_ = pipes[0];
  channel_ = new Channel(ends[0]);
}

Child::~Child() {
  delete channel_;
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(errors_);
}

int Child::wait() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  char part[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd waiting = {errors_, POLLIN, 0};
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) != 1) return -1;
    const ssize_t bytes = read(errors_, part, sizeof(part));
    if (bytes <= 0) break;  // it has ended, or closed its stderr
    words_.append(part, static_cast<size_t>(bytes));
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace cgx::gpu
