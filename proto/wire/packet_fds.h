// Descriptors beside a packet of a Unix socket (SCM_RIGHTS), as both sides of a session send and
// take them.
// Thread rule: none of its own.
#pragma once

#include <sys/socket.h>

#include <span>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace cgx::wire {

// Room for so many descriptors in a message's control part.
template <size_t kFdsMax>
struct FdRoom {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
};

// REQUIRES: `room` has room for `fds`, and outlives the call that sends the message.
void attach_fds(msghdr& message, std::span<char> room, std::span<const int> fds);
// All that came with a received message: its receiver owns them.
void take_fds(const msghdr& message, std::vector<UniqueFd>& fds);

}  // namespace cgx::wire
