// Whether this machine has what a configuration names: files, groups, devices, addresses, ports,
// cores. What cgxd --check-config adds to the configuration's own rules. Thread rule: main; reads
// files, opens and closes sockets, leaves nothing behind.
#pragma once

#include "proto/messages/config.pb.h"
#include "proto/wire/status.h"

namespace cgx::daemon {

// All that is missing, one line each with its key. `config` is complete and resolved.
Status check_machine(const v1::Config& config);

}  // namespace cgx::daemon
