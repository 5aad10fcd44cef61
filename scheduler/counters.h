// What a daemon counts: the rows of counters.def and their values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cgx::scheduler {

enum class Counter : uint16_t {
#define X(name, help) k##name,
#include "proto/wire/counters.def"
#undef X
  kCount
};
using Counters = std::array<uint64_t, static_cast<size_t>(Counter::kCount)>;
const char* counter_name(Counter counter);
const char* counter_help(Counter counter);

}  // namespace cgx::scheduler
