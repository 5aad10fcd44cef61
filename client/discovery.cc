#include "client/discovery.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "client/autostart.h"

namespace cgx::client {
namespace {

constexpr std::chrono::milliseconds kRetryPause(20);

bool in_runtime_dir(const Environment& environment, const std::string& path) {
  return path.starts_with(environment.runtime_dir + "/");
}

Status trusted_place(const Environment& environment, const std::string& path) {
  if (!in_runtime_dir(environment, path)) return {};
  return check_runtime_dir(environment.runtime_dir, environment.uid);
}

// Whoever answers in the user's own directory must be that user or root; root's is the machine's,
// where only root lets a daemon serve.
Status check_owner(const Environment& environment, const SessionSocket& socket) {
  if (!in_runtime_dir(environment, socket.path()) || environment.uid == 0) return {};
  CGX_ASSIGN_OR_RETURN(const uint32_t uid, socket.daemon_uid());
  if (uid == environment.uid || uid == 0) return {};
  return {StatusCode::kPERMISSION_DENIED, "the daemon at " + socket.path() + " runs as user " +
                                              std::to_string(uid) + ", neither user " +
                                              std::to_string(environment.uid) + " nor root"};
}

Result<Connection> connect_at(const Environment& environment, const std::string& path,
                              const wire::Hello& hello, Deadline deadline) {
  CGX_RETURN_IF_ERROR(trusted_place(environment, path));
  CGX_ASSIGN_OR_RETURN(auto socket, SessionSocket::connect(path, deadline));
  CGX_RETURN_IF_ERROR(check_owner(environment, *socket));
  CGX_ASSIGN_OR_RETURN(Handshake handshake, socket->shake_hands(hello, deadline));
  return Connection{std::move(socket), std::move(handshake)};
}

// Nobody is there, or a private daemon that is just leaving.
bool absent(const Status& status) {
  return status.code() == StatusCode::kUNAVAILABLE || status.code() == StatusCode::kDAEMON_LOST;
}

Result<Connection> connect_anywhere(const Environment& environment,
                                    const std::vector<std::string>& paths, const wire::Hello& hello,
                                    Deadline deadline) {
  std::string tried;
  size_t distrusted = 0;
  for (const std::string& path : paths) {
    // Anybody may have made a directory of that name in /tmp: nobody is asked there, nobody missed.
    if (Status own = trusted_place(environment, path); !own.ok()) {
      tried += (tried.empty() ? "" : "; ") + own.message();
      ++distrusted;
      continue;
    }
    auto connection = connect_at(environment, path, hello, deadline);
    if (connection.ok() || !absent(connection.status())) return connection;
    tried += (tried.empty() ? "" : "; ") + connection.status().message();
  }
  const bool nowhere = distrusted == paths.size();
  return Status(nowhere ? StatusCode::kPERMISSION_DENIED : StatusCode::kUNAVAILABLE, tried);
}

// One that is coming up: after boot, or a restart, or because it was started a moment ago.
Result<Connection> await_daemon(const Environment& environment,
                                const std::vector<std::string>& paths, const wire::Hello& hello,
                                Deadline deadline) {
  for (;;) {
    auto connection = connect_anywhere(environment, paths, hello, deadline);
    const bool found = connection.ok() || !absent(connection.status());
    if (found || Clock::now() + kRetryPause >= deadline) return connection;
    std::this_thread::sleep_for(kRetryPause);
  }
}

Result<Connection> connect_started(const Environment& environment, const std::string& path,
                                   const wire::Hello& hello, Deadline deadline) {
  CGX_ASSIGN_OR_RETURN(const StartLock lock, StartLock::take(environment, path, deadline));
  auto connection = connect_at(environment, path, hello, deadline);  // another rank was faster
  if (connection.ok() || !absent(connection.status())) return connection;
  CGX_RETURN_IF_ERROR(start_daemon(environment, path));
  do {
    std::this_thread::sleep_for(kRetryPause);
    connection = connect_at(environment, path, hello, deadline);
    if (connection.ok() || !absent(connection.status())) return connection;
  } while (Clock::now() < deadline);
  return Status(StatusCode::kUNAVAILABLE,
                "the daemon started for this job did not answer in time (" +
                    connection.status().message() + "); its log is " + log_path(path));
}

}  // namespace

Result<Connection> connect_daemon(const Environment& environment, const std::string& asked_for,
                                  const wire::Hello& hello, Deadline deadline) {
  const std::vector<std::string> paths = candidate_sockets(environment, asked_for);
  if (environment.autostart) {
    auto running = connect_anywhere(environment, paths, hello, deadline);
    if (running.ok() || !absent(running.status())) return running;
    return connect_started(environment, paths.front(), hello, deadline);
  }
  auto connection = await_daemon(environment, paths, hello, deadline);
  if (connection.ok() || !absent(connection.status())) return connection;
  return Status(StatusCode::kUNAVAILABLE,
                connection.status().message() +
                    " (start cgxd, set CGX_SOCKET to its socket, or set CGX_AUTOSTART=1)");
}

}  // namespace cgx::client
