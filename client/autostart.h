// Autostart: starts a private daemon of this user at a socket path. It lives in a session of its
// own, inherits no descriptor, writes its log beside the socket and ends itself when its last
// client has gone.
#pragma once

#include <string>

#include "client/deadline.h"
#include "client/environment.h"
#include "proto/wire/unique_fd.h"

namespace cgx::client {

// Held by the one process that starts the daemon; the others wait for it, then find the daemon.
class StartLock {
 public:
  static Result<StartLock> take(const Environment& environment, const std::string& socket_path,
                                Deadline deadline);

 private:
  explicit StartLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

// In the network the launcher's variables tell of, else for one machine only (client/cluster.h).
// Looks for the binary in $CGXD, beside libcgx and in $PATH. Returns when the process exists.
Status start_daemon(const Environment& environment, const std::string& socket_path);

std::string log_path(const std::string& socket_path);

}  // namespace cgx::client
