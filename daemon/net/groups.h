// Groups of the machine's users, as the configuration names them.
// Thread rule: pure functions.
#pragma once

#include <sys/types.h>

#include <string>

#include "proto/wire/status.h"

namespace cgx::daemon {

constexpr gid_t kNoGroup = static_cast<gid_t>(-1);

// A group's name or number; kNoGroup for an empty text. NOT_FOUND names the configuration's key and
// the group.
Result<gid_t> find_group(const std::string& key, const std::string& text);

}  // namespace cgx::daemon
