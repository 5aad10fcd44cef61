#include "tests/transport/two_processes.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace cgx::transport {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  _exit(70);
}

void shell(const std::string& command) {
  require(std::system(command.c_str()) == 0, command.c_str());
}

void enter_own_namespace() {
  require(::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0, "unshare");
  require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
  // A sysfs of the new namespace: UCX looks for devices in /sys/class/net.
  require(::mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0, "mount /sys");
  shell("ip link set lo up");
}

void swap_bytes(const TwoProcesses::Child& self, const void* mine, void* theirs, size_t bytes) {
  write_all(self.socket, mine, bytes);
  require(read_all(self.socket, theirs, bytes), "the other process is gone");
}

// The kernel announces a link as running a little after both ends are up; UCX skips it before.
void await_running() {
  std::string state;
  for (int i = 0; i < 5000 && state != "up"; ++i) {
    std::ifstream("/sys/class/net/veth0/operstate") >> state;
    ::usleep(1000);
  }
  require(state == "up", "veth0 does not come up");
}

void join_namespaces(const TwoProcesses::Child& self) {
  enter_own_namespace();
  const pid_t mine = ::getpid();
  pid_t other = 0;
  swap_bytes(self, &mine, &other, sizeof mine);
  if (self.side == 0) {
    shell("ip link add veth0 type veth peer name veth0 netns " + std::to_string(other));
  }
  meet(self);
  shell("ip addr add 10.99.0." + std::to_string(self.side + 1) + "/24 dev veth0");
  shell("ip link set veth0 up");
  meet(self);
  await_running();
  meet(self);
}

[[noreturn]] void run_child(Where where, const TwoProcesses::Run& run,
                            const TwoProcesses::Child& self) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (where == Where::kTwoNamespaces) join_namespaces(self);
  const int result = run(self);
  std::fflush(nullptr);
  ::_exit(result);
}

}  // namespace

TwoProcesses::TwoProcesses(Where where, const Run& run) {
  int sockets[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  std::fflush(nullptr);
  for (int side = 0; side < 2; ++side) {
    pids_[side] = ::fork();
    require(pids_[side] >= 0, "fork");
    if (pids_[side] == 0) {
      ::close(sockets[1 - side]);
      run_child(where, run, {side, sockets[side]});
    }
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
}

TwoProcesses::~TwoProcesses() {
  for (int side = 0; side < 2; ++side) {
    if (pids_[side] > 0) ::kill(pids_[side], SIGKILL);
    wait(side);
  }
}

int TwoProcesses::wait(int side) {
  if (pids_[side] <= 0) return -1;
  int status = 0;
  while (::waitpid(pids_[side], &status, 0) < 0 && errno == EINTR) {
  }
  pids_[side] = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool can_make_namespaces() {
  return ::geteuid() == 0 && ::access("/proc/self/ns/net", R_OK) == 0;
}

uint64_t veth_bytes_sent() {
  uint64_t bytes = 0;
  std::ifstream("/sys/class/net/veth0/statistics/tx_bytes") >> bytes;
  return bytes;
}

void write_all(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (done <= 0) return;  // the reader of the other direction will notice
    at += done;
    bytes -= static_cast<size_t>(done);
  }
}

bool read_all(int socket, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::read(socket, at, bytes);
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

Result<PeerId> connect_over(Transport& transport, const TwoProcesses::Child& self) {
  CGX_ASSIGN_OR_RETURN(const Endpoint mine, transport.local_endpoint());
  const uint32_t sizes[2] = {static_cast<uint32_t>(mine.address.size()),
                             static_cast<uint32_t>(mine.settings.size())};
  write_all(self.socket, sizes, sizeof sizes);
  write_all(self.socket, mine.address.data(), mine.address.size());
  write_all(self.socket, mine.settings.data(), mine.settings.size());
  uint32_t theirs[2] = {};
  require(read_all(self.socket, theirs, sizeof theirs), "the other process is gone");
  ConnectOptions options{.inbound_tag = static_cast<uint64_t>(2 - self.side),
                         .outbound_tag = static_cast<uint64_t>(1 + self.side),
                         .name = "machine " + std::to_string(1 - self.side)};
  options.remote.address.resize(theirs[0]);
  options.remote.settings.resize(theirs[1]);
  require(read_all(self.socket, options.remote.address.data(), theirs[0]) &&
              read_all(self.socket, options.remote.settings.data(), theirs[1]),
          "the other process is gone");
  Result<PeerId> peer = transport.connect(options);
  meet(self);  // both know their inbound tag
  return peer;
}

void meet(const TwoProcesses::Child& self) {
  const char mine = 'm';
  char theirs = 0;
  swap_bytes(self, &mine, &theirs, 1);
}

}  // namespace cgx::transport
