// Who asks, and what they may see: operators every job, owners theirs, others only totals.
// Thread rule: pure values and functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "proto/wire/status.h"

namespace cgx::daemon {

constexpr uint32_t kNoUser = UINT32_MAX;
constexpr gid_t kNoGroup = static_cast<gid_t>(-1);

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

// A group's name or number; kNoGroup for an empty text. NOT_FOUND names the group.
Result<gid_t> find_group(const std::string& text);

}  // namespace cgx::daemon
