// A group of tensors that each have so many elements and a codec, with its table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan/plan.h"

namespace cgx::scheduler {

constexpr CodecSpec kRaw{.codec = 0, .bucket = 512};
constexpr CodecSpec kFourBits{
    .codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

struct Case {
  std::vector<std::pair<uint64_t, CodecSpec>> tensors;
  uint32_t machines;
};

struct Built {
  TensorTable table;
  Group group;
};

inline Built build(const Case& c) {
  Built built;
  for (const auto& [elements, spec] : c.tensors) {
    built.group.segments.push_back({static_cast<uint32_t>(built.table.size()), spec});
    built.table.push_back({.name = "t" + std::to_string(built.table.size()), .elements = elements});
  }
  return built;
}

}  // namespace cgx::scheduler
