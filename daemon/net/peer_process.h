// Who is at the other end of a Unix socket, and when it dies.
//
// The uid decides rights. Liveness is a pidfd: a forked child may keep the socket open, and a pid
// may be reused or belong to another namespace. Thread rule: values.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct PeerProcess {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;  // 0: in a pid namespace we cannot see
  UniqueFd
      pidfd;  // readable when it has died; empty: the kernel cannot tell, the client must send one
};
Result<PeerProcess> peer_process(int socket);

// For kernels without SO_PEERPIDFD: takes the pidfd a client sent if it names the process that
// connected, as far as /proc can tell.
Status adopt_pidfd(UniqueFd& sent, PeerProcess& peer);

bool has_exited(int pidfd);

}  // namespace cgx::daemon
