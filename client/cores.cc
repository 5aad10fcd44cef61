#include "client/cores.h"

#include <sched.h>

#include <memory>
#include <string>
#include <thread>

namespace cgx::client {

uint32_t usable_cores() {
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

Status check_spinning(uint32_t spin_us, uint32_t ranks) {
  if (spin_us == 0) return {};
  const uint32_t cores = usable_cores();
  if (cores >= ranks + 1) return {};
  return resource_exhausted("spinning for " + std::to_string(spin_us) + " us was asked for, but " +
                            std::to_string(ranks) + " ranks and the daemon need " +
                            std::to_string(ranks + 1) + " cores and this process may use " +
                            std::to_string(cores) + "; unset CGX_SPIN_US");
}

}  // namespace cgx::client
