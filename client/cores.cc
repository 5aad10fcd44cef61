#include "client/cores.h"

#include <string>

namespace cgx::client {

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
