// What the status page draws, as JSON. Thread rule: pure but for asking the system which interface
// leads to a host.
#pragma once

#include <string>

#include "daemon/operators/control_view.h"
#include "daemon/operators/watch.h"

namespace cgx::daemon {

struct Moments {  // now, by both clocks
  uint64_t monotonic_ns = 0, unix_ns = 0;
};

std::string status_json(const Snapshot& snapshot, Watch& watch, const DaemonFacts& facts,
                        const Moments& now);

// Files of daemon/operators/page/ by the name they are asked for; null: there is none.
struct PageFile {
  const char* name;
  const char* type;
  std::string_view content;
};
const PageFile* page_file(std::string_view name);

}  // namespace cgx::daemon
