#include "client/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace cgx::client {
namespace {

constexpr uint64_t kUnlimited = uint64_t{1} << 60;  // version 1 writes a number near 2^63

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // "max", too
  return value;
}

uint64_t reclaimable(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  uint64_t bytes = 0, total = 0;
  bool hierarchical = false;
  std::string key;
  for (uint64_t value = 0; file >> key >> value;) {
    if (key == "inactive_file") bytes = value;
    if (key == "total_inactive_file") {
      total = value;
      hierarchical = true;
    }
  }
  return hierarchical ? total : bytes;
}

// Every group on the way up may have a limit.
void look_upwards(const std::string& root, std::string group, std::optional<GroupMemory>& least) {
  for (;;) {
    const auto left = memory_left(root + group);
    if (left && (!least || *left < least->bytes)) {
      least = GroupMemory{group.empty() ? "/" : group, *left};
    }
    if (group.empty() || group == "/") return;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

std::optional<uint64_t> memory_left(const std::string& folder) {
  auto limit = number_in(folder + "/memory.max");
  auto used = number_in(folder + "/memory.current");
  if (!used) {
    limit = number_in(folder + "/memory.limit_in_bytes");
    used = number_in(folder + "/memory.usage_in_bytes");
  }
  if (!limit || !used || *limit >= kUnlimited) return std::nullopt;
  const uint64_t pinned = *used - std::min(*used, reclaimable(folder));
  return *limit - std::min(*limit, pinned);
}

std::optional<GroupMemory> memory_left_in_group() {
  std::ifstream groups("/proc/self/cgroup");
  std::optional<GroupMemory> least;
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:memory:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") look_upwards("/sys/fs/cgroup", group, least);
    if (controllers.find(",memory,") != std::string::npos) {
      look_upwards("/sys/fs/cgroup/memory", group, least);
    }
  }
  return least;
}

}  // namespace cgx::client
