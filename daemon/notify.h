// Tells the service manager (systemd) how we are, if one asked: NOTIFY_SOCKET. By hand, because it
// is one datagram and libsystemd would be a dependency. Thread rule: main.
#pragma once

#include <cstdint>
#include <string_view>

namespace cgx::daemon {

void notify_manager(std::string_view state);  // "READY=1", "STOPPING=1", "WATCHDOG=1"

// How often the manager wants to hear WATCHDOG=1; 0: it does not.
uint64_t watchdog_ns();

}  // namespace cgx::daemon
