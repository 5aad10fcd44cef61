// Who shares are counted for: a user, and where several share an id the container or service.
//
// Users' own sessions (user.slice) count by uid alone: who logs in makes control groups at will.
// Thread rule: pure functions, but for one that reads /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cgx::daemon {

// "uid 1000"; "uid 0 in container 3f2a81c09d11"; "uid 0 in /system.slice/train.service" (root only,
// two levels deep). `cgroup`: what /proc/PID/cgroup says.
std::string holder_name(uint32_t uid, std::string_view cgroup);

// Of a process, as far as /proc tells; `pid` 0: nothing but the uid is known.
std::string holder_of(uint32_t uid, pid_t pid);

// Of the process at the other end of a Unix socket.
std::string holder_behind(int socket);

// Whether what `holder` has is `uid`'s.
bool is_of(const std::string& holder, uint32_t uid);

}  // namespace cgx::daemon
