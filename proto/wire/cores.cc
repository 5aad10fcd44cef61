#include "proto/wire/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace cgx {
namespace {

uint32_t cores_of_affinity() {
  // The kernel refuses a mask shorter than its own: grow until it fits.
  for (int cores = 1024; cores <= 65'536; cores *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(cores);
    const auto mask = std::make_unique<unsigned long[]>(bytes / sizeof(unsigned long));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.get());
    if (::sched_getaffinity(0, bytes, set) == 0) {
      return static_cast<uint32_t>(CPU_COUNT_S(bytes, set));
    }
  }
  return 1;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Every group on the way up may have a quota; version 2 has one hierarchy, version 1 one for "cpu".
uint32_t smallest_quota(std::string group, const std::string& root, bool version2) {
  uint32_t cores = UINT32_MAX;
  for (;;) {
    const std::string folder = root + group;
    const std::string quota = version2 ? first_line(folder + "/cpu.max")
                                       : first_line(folder + "/cpu.cfs_quota_us") + " " +
                                             first_line(folder + "/cpu.cfs_period_us");
    cores = std::min(cores, cores_of_quota(quota));
    if (group.empty() || group == "/") return cores;
    group.erase(group.rfind('/'));
  }
}

uint32_t cores_of_cgroup() {
  std::ifstream groups("/proc/self/cgroup");
  uint32_t cores = UINT32_MAX;
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") cores = std::min(cores, smallest_quota(group, "/sys/fs/cgroup", true));
    if (controllers.find(",cpu,") != std::string::npos) {
      cores = std::min(cores, smallest_quota(group, "/sys/fs/cgroup/cpu", false));
    }
  }
  return cores;
}

}  // namespace

uint32_t cores_of_quota(const std::string& quota) {
  std::istringstream words(quota);
  double amount = 0, period = 0;
  if (!(words >> amount >> period) || amount <= 0 || period <= 0) return UINT32_MAX;
  return std::max(1u, static_cast<uint32_t>(amount / period));
}

uint32_t usable_cores() {
  return std::min(cores_of_affinity(), cores_of_cgroup());
}

}  // namespace cgx
