// Carries bytes between a local connection and a library that does not expect descriptors: whoever
// reads a connection without room for them closes those that were sent, which takes as long as
// their sender likes.
//
// Owns a thread for each connection, which nobody waits for: it may block in closing it, and holds
// no descriptor but the two. Who sends a descriptor loses the connection.
// Thread rule: from anywhere; `on_end` runs on the pump's thread, when the connection is closed.
#pragma once

#include <functional>
#include <optional>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct PumpEnds {
  UniqueFd ours, theirs;  // the pump's, the library's
};
std::optional<PumpEnds> make_pump_ends();  // nothing: no descriptor is left

// Until either end closes. False: there is no thread to be had, and both are as before.
bool start_pump(UniqueFd& connection, UniqueFd& ours, std::function<void()> on_end);

}  // namespace cgx::daemon
