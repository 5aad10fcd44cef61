// What an absent word means on this machine: the one place that reads the environment.
#pragma once

#include "proto/messages/config.pb.h"

namespace cgx::config {

// Fills run_directory, client.socket and control.socket where they are empty.
// REQUIRES: fill_defaults(config).
void resolve_paths(v1::Config& config);

}  // namespace cgx::config
