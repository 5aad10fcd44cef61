#include "daemon/net/peer_process.h"

#include <poll.h>
#include <sys/socket.h>

#include <fstream>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace cgx::daemon {
namespace {

// The "Pid:" line of a pidfd's fdinfo: -1 not a pidfd, 0 not visible from here.
pid_t pid_of(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  std::string key;
  while (info >> key) {
    pid_t pid;
    if (key == "Pid:" && info >> pid) return pid < 0 ? 0 : pid;
    info.ignore(4096, '\n');
  }
  return -1;
}

}  // namespace

Result<PeerProcess> peer_process(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return errno_status(StatusCode::kINTERNAL, "SO_PEERCRED");
  }
  PeerProcess peer{credentials.uid, credentials.gid, credentials.pid, UniqueFd()};
  int pidfd = -1;
  bytes = sizeof(pidfd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) {
    peer.pidfd = UniqueFd(pidfd);
  } else if (errno == EMFILE || errno == ENFILE) {
    return resource_exhausted("the daemon has no descriptor left (ulimit -n)");
  } else if (errno != ENOPROTOOPT) {  // EINVAL, ESRCH, ENODATA: kernels differ
    return Status(StatusCode::kRANK_LOST, "the client died before it was heard");
  }
  return peer;
}

Status adopt_pidfd(UniqueFd& sent, PeerProcess& peer) {
  if (!sent) {
    return protocol_error("this kernel has no SO_PEERPIDFD: Hello must carry a pidfd");
  }
  const pid_t pid = pid_of(sent.get());
  if (pid < 0) return protocol_error("the descriptor in Hello is not a pidfd");
  if (peer.pid != 0 && pid != peer.pid) {
    return Status(StatusCode::kPERMISSION_DENIED,
                  "the pidfd in Hello is of process " + std::to_string(pid) +
                      ", connected is process " + std::to_string(peer.pid));
  }
  peer.pidfd = std::move(sent);
  return {};
}

bool has_exited(int pidfd) {
  pollfd poll{.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace cgx::daemon
