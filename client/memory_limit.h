// How much memory this process's control groups still allow: beyond that the kernel does not
// refuse, it kills.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cgx::client {

struct GroupMemory {
  std::string name;  // of the group whose limit is nearest
  uint64_t bytes = 0;
};

// nullopt: no group has a limit, or none can be read. What the kernel can reclaim at once (files'
// pages nobody uses) counts as free.
std::optional<GroupMemory> memory_left_in_group();

// The same for one group's folder: its files of version 2 (memory.max) or 1.
std::optional<uint64_t> memory_left(const std::string& folder);

}  // namespace cgx::client
