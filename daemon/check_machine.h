// Whether this machine has what a configuration names: files, groups, devices, addresses, ports,
// cores. What cgxd --check-config adds to the configuration's own rules. Thread rule: main; reads
// files, opens and closes sockets, leaves nothing behind.
#pragma once

#include <string>
#include <vector>

#include "proto/messages/config.pb.h"
#include "proto/wire/status.h"

namespace cgx::daemon {

// All that is missing, one line each with its key. `config` is complete and resolved.
Status check_machine(const v1::Config& config);

// What works here and is still to be known: a key in the configuration's `file` (empty: there is
// none) that every user can read, and key files that only root can read, who asks.
std::vector<std::string> secrets_warnings(const v1::Config& config, const std::string& file);

}  // namespace cgx::daemon
