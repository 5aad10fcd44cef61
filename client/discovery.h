// Discovery: finds the daemon of this machine and shakes hands, starting a private daemon if the
// user asked for that (CGX_AUTOSTART=1).
#pragma once

#include <memory>
#include <string>

#include "client/deadline.h"
#include "client/environment.h"
#include "client/session_socket.h"

namespace cgx::client {

struct Connection {
  std::unique_ptr<SessionSocket> socket;
  Handshake handshake;
};

// UNAVAILABLE lists every place that was tried.
Result<Connection> connect_daemon(const Environment& environment, const std::string& asked_for,
                                  const wire::Hello& hello, Deadline deadline);

}  // namespace cgx::client
