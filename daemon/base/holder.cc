#include "daemon/base/holder.h"

#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace cgx::daemon {
namespace {

constexpr size_t kIdDigits = 32;     // a container's name has as many in a row, or more
constexpr size_t kShownDigits = 12;  // as container tools show it

// The path of one hierarchy: "0::/a" or "4:memory:/a".
std::string_view path_of(std::string_view cgroup, std::string_view hierarchy) {
  while (!cgroup.empty()) {
    const std::string_view line = cgroup.substr(0, cgroup.find('\n'));
    cgroup.remove_prefix(std::min(cgroup.size(), line.size() + 1));
    const size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    if (line.substr(first + 1, second - first - 1) == hierarchy) return line.substr(second + 1);
  }
  return {};
}

// The unified hierarchy where it is used, else the one that limits memory.
std::string_view telling_path(std::string_view cgroup) {
  for (const std::string_view hierarchy : {"", "memory", "pids", "name=systemd"}) {
    const std::string_view path = path_of(cgroup, hierarchy);
    if (path.size() > 1) return path;
  }
  return {};
}

std::string_view container_id(std::string_view path) {
  size_t run = 0;
  for (size_t i = 0; i <= path.size(); ++i) {
    const bool digit = i < path.size() &&
                       std::string_view("0123456789abcdef").find(path[i]) != std::string_view::npos;
    if (digit) {
      ++run;
    } else if (run >= kIdDigits) {
      return path.substr(i - run, kShownDigits);
    } else {
      run = 0;
    }
  }
  return {};
}

std::string_view two_levels(std::string_view path) {
  const size_t second = path.find('/', 1);
  const size_t third = second == std::string_view::npos ? second : path.find('/', second + 1);
  return path.substr(0, third);
}

}  // namespace

std::string holder_name(uint32_t uid, std::string_view cgroup) {
  const std::string user = "uid " + std::to_string(uid);
  const std::string_view path = telling_path(cgroup);
  if (path.empty() || path.starts_with("/user.slice")) return user;
  if (const auto id = container_id(path); !id.empty()) {
    return user + " in container " + std::string(id);
  }
  return uid == 0 ? user + " in " + std::string(two_levels(path)) : user;
}

std::string holder_of(uint32_t uid, pid_t pid) {
  if (pid <= 0) return holder_name(uid, {});
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  const std::string cgroup(std::istreambuf_iterator<char>(file), {});
  return holder_name(uid, cgroup);
}

std::string holder_behind(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return {};
  return holder_of(peer.uid, peer.pid);
}

bool is_of(const std::string& holder, uint32_t uid) {
  const std::string user = "uid " + std::to_string(uid);
  return holder == user || holder.starts_with(user + " ");
}

}  // namespace cgx::daemon
