// The read-only status page: one HTML document without scripts, for eyes. Thread rule: pure
// function.
#pragma once

#include <string>

#include "daemon/control_view.h"

namespace cgx::daemon {

std::string status_page(const Snapshot& snapshot, const DaemonFacts& facts);

}  // namespace cgx::daemon
