// This machine's network interfaces. Thread rule: pure functions of the system's state.
#pragma once

#include <string>
#include <vector>

#include "daemon/networks.h"

namespace cgx::daemon {

// Those that are up and have an address in one of the networks, by name, each once.
std::vector<std::string> interfaces_inside(const NetworkList& networks);

}  // namespace cgx::daemon
