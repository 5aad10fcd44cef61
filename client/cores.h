// Whether spinning is allowed on what this process may run on (proto/wire/cores.h). Spinning on
// shared cores costs every neighbour (1,046 us instead of 14 us per exchange), so it is refused
// rather than granted badly.
#pragma once

#include <cstdint>

#include "proto/wire/cores.h"
#include "proto/wire/status.h"

namespace cgx::client {

// RESOURCE_EXHAUSTED unless `ranks` trainers and the daemon have a core each, or nobody spins.
Status check_spinning(uint32_t spin_us, uint32_t ranks);

// Lets a hyper-thread neighbour run while this one spins.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cgx::client
