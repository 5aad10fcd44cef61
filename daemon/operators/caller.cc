#include "daemon/operators/caller.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {
namespace {

Result<std::vector<gid_t>> peer_groups(int fd) {
  std::vector<gid_t> groups(64);
  socklen_t length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  int result = ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length);
  if (result != 0 && errno == ERANGE) {  // `length` now says how much is needed
    groups.resize(length / sizeof(gid_t));
    result = ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length);
  }
  if (result != 0) return errno_status(StatusCode::kPERMISSION_DENIED, "groups of a caller");
  groups.resize(length / sizeof(gid_t));
  return groups;
}

}  // namespace

Result<Caller> identify_peer(int fd, gid_t operators) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return errno_status(StatusCode::kPERMISSION_DENIED, "credentials of a caller");
  }
  Caller caller{"uid " + std::to_string(peer.uid), peer.uid,
                peer.uid == 0 || peer.uid == ::geteuid()};
  if (caller.is_operator || operators == kNoGroup) return caller;
  CGX_ASSIGN_OR_RETURN(const std::vector<gid_t> groups, peer_groups(fd));
  caller.is_operator =
      peer.gid == operators || std::find(groups.begin(), groups.end(), operators) != groups.end();
  return caller;
}

}  // namespace cgx::daemon
