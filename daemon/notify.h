// Tells the service manager (systemd) how we are, if one asked: NOTIFY_SOCKET. By hand, because it
// is one datagram and libsystemd would be a dependency. Thread rule: main.
#pragma once

#include <string_view>

namespace cgx::daemon {

void notify_manager(std::string_view state);  // "READY=1", "STOPPING=1"

}  // namespace cgx::daemon
