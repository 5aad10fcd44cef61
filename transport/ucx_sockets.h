// UCX's TCP sockets, found among this process's descriptors by port, to set their congestion
// control: UCX has no option for it. Internal to transport/ucx*.
//
// Thread rule: as the transport that owns it. Only set-up and the first frames of a link pay.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::transport {

using Ports = std::vector<uint16_t>;

// Listening TCP sockets of this process, by descriptor. Take one before and one after UCX opens
// its own; the difference is UCX's.
std::set<int> listening_sockets();
Ports ports_of(const std::set<int>& sockets);

// Sets TCP_CONGESTION on listeners (what they accept inherits it), on sockets accepted by `own` and
// on sockets connected to `remote` ports.
Status set_congestion(const std::string& algorithm, const Ports& own, const Ports& remote);

}  // namespace cgx::transport
