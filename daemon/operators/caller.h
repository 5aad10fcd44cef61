// Who asks, and what they may see: operators every job, owners theirs, others only totals.
// Thread rule: pure values and functions.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/net/groups.h"
#include "proto/wire/status.h"

namespace cgx::daemon {

constexpr uint32_t kNoUser = UINT32_MAX;

struct Caller {
  std::string name;        // for the audit log: "uid 1000", "certificate alice@example.org"
  uint32_t uid = kNoUser;  // kNoUser: over TCP
  bool is_operator = false;

  bool may_see(uint32_t owner) const { return is_operator || (uid != kNoUser && uid == owner); }
  friend bool operator==(const Caller&, const Caller&) = default;
};

// The other end of a Unix socket as the kernel saw it at connect. Operators are root, the daemon's
// own user and the members of `operators`.
Result<Caller> identify_peer(int fd, gid_t operators);

}  // namespace cgx::daemon
