#include "scheduler/counters.h"

namespace cgx::scheduler {

const char* counter_name(Counter counter) {
  static constexpr const char* kNames[] = {
#define X(name, help) #name,
#include "proto/wire/counters.def"
#undef X
  };
  return kNames[static_cast<size_t>(counter)];
}

const char* counter_help(Counter counter) {
  static constexpr const char* kHelp[] = {
#define X(name, help) help,
#include "proto/wire/counters.def"
#undef X
  };
  return kHelp[static_cast<size_t>(counter)];
}

}  // namespace cgx::scheduler
