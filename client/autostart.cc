#include "client/autostart.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "client/checks.h"

namespace cgx::client {
namespace {

constexpr std::chrono::milliseconds kLockPause(10);
constexpr char kWaysOut[] =
    ", so that no daemon is started there; set XDG_RUNTIME_DIR to a directory of your own, or "
    "CGX_SOCKET to the path of a socket in one";

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool executable(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string library_directory() {
  Dl_info info{};
  const auto here = reinterpret_cast<const void*>(&log_path);
  return ::dladdr(here, &info) != 0 && info.dli_fname ? directory_of(info.dli_fname) : ".";
}

Result<std::string> find_binary(const Environment& environment) {
  if (!environment.daemon_binary.empty()) {
    if (executable(environment.daemon_binary)) return environment.daemon_binary;
    return unavailable("CGXD=" + environment.daemon_binary + " is not an executable file");
  }
  const std::string library = library_directory();
  std::vector<std::string> places{library + "/cgxd", library + "/../bin/cgxd"};
  std::istringstream path(environment.path);
  for (std::string entry; std::getline(path, entry, ':');) {
    if (!entry.empty()) places.push_back(entry + "/cgxd");
  }
  for (const std::string& place : places) {
    if (executable(place)) return place;
  }
  return unavailable("CGX_AUTOSTART=1, but no cgxd binary beside " + library +
                     "/libcgx.so nor in PATH; set CGXD to it");
}

// The file actions and attributes of posix_spawn, released on every way out.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  explicit SpawnSetup(const std::string& log) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                       0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
};

}  // namespace

std::string log_path(const std::string& socket_path) {
  return socket_path + ".log";
}

Result<StartLock> StartLock::take(const Environment& environment, const std::string& socket_path,
                                  Deadline deadline) {
  const std::string directory = directory_of(socket_path);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return unavailable("runtime directory " + directory + ": " + std::strerror(errno));
  }
  if (directory == environment.runtime_dir) {
    const Status safe = check_runtime_dir(directory, environment.uid);
    if (!safe.ok()) return Status(safe.code(), safe.message() + kWaysOut);
  }
  const std::string path = socket_path + ".start";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return unavailable(path + ": " + std::strerror(errno));
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (Clock::now() >= deadline) {
      return unavailable("another process has been starting a daemon for too long; it holds " +
                         path);
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return StartLock(std::move(file));
}

// A shell starts it in the background and ends at once: the daemon becomes no child of the trainer,
// and the trainer is not forked (it has threads, and handlers of other libraries).
Status start_daemon(const Environment& environment, const std::string& socket_path) {
  CGX_ASSIGN_OR_RETURN(std::string binary, find_binary(environment));
  std::string script = R"(exec "$0" --private --socket "$1" ${2:+--network "$2"} &)";
  std::string sh = "sh", dash_c = "-c", path = socket_path;
  std::string network = cluster_network(environment.launcher);
  char* const arguments[] = {sh.data(),   dash_c.data(),  script.data(), binary.data(),
                             path.data(), network.data(), nullptr};
  const SpawnSetup setup(log_path(socket_path));
  pid_t shell = -1;
  const int error =
      ::posix_spawn(&shell, "/bin/sh", &setup.actions, &setup.attributes, arguments, environ);
  if (error != 0) return unavailable("starting " + binary + ": " + std::strerror(error));
  int ended = 0;
  while (::waitpid(shell, &ended, 0) < 0 && errno == EINTR) {
  }
  return {};
}

}  // namespace cgx::client
