// Everything libcgx takes from its environment, read once per cgx_open: variables, the user, the
// places where a daemon's socket may be. Nothing else in libcgx calls getenv.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cluster.h"
#include "proto/wire/status.h"

namespace cgx::client {

constexpr uint32_t kSpinUsMax = 1'000'000;

struct Environment {
  std::string socket;         // CGX_SOCKET
  std::string job;            // CGX_JOB
  std::string leader;         // CGX_LEADER: host:port of the built-in rendezvous
  std::string daemon_binary;  // CGXD
  std::string path;           // PATH
  std::string runtime_dir;    // of this user's private daemon
  LauncherWords launcher;     // CGX_NETWORK and what torchrun, Slurm, mpirun say
  bool autostart = false;     // CGX_AUTOSTART=1
  uint32_t spin_us = 0;       // CGX_SPIN_US, at most kSpinUsMax
  uint32_t uid = 0;
};

// INVALID_ARGUMENT names the variable whose value cannot be read.
Result<Environment> read_environment();

// Where to look for a daemon, in this order: the socket asked for and nothing else, or the user's
// own daemon and then the machine's.
std::vector<std::string> candidate_sockets(const Environment& environment,
                                           const std::string& asked_for);

// A runtime directory others can write to would let them pose as the daemon. OK if it does not
// exist. The machine's may belong to the daemon's own user: only root can have given it that.
Status check_runtime_dir(const std::string& directory, uint32_t uid);

}  // namespace cgx::client
