// Runs another program and takes what it prints. Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::ctl {

struct Ended {
  int status = -1;  // exit status; 128 + N: signal N
  std::string out, error;
};

// UNAVAILABLE: it cannot be started. Waits for its end.
Result<Ended> run_program(const std::vector<std::string>& command);

// The cgxd that belongs to this cgxctl: beside it, else in PATH.
std::string daemon_program();

}  // namespace cgx::ctl
