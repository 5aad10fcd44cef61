// `cgxd --drain`: tells the running daemon to end, by the program that operators use for it.
// Thread rule: main.
#pragma once

#include <string>

#include "proto/wire/status.h"

namespace cgx::daemon {

// Becomes `cgxctl drain` for the daemon at `control_socket` (the cgxctl beside this program, else
// that in PATH), so it returns only if there is none. `limit_s`: as typed; empty:
// timeouts.drain_ms.
Status drain_running(const std::string& control_socket, const std::string& limit_s);

}  // namespace cgx::daemon
