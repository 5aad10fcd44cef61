// TCP ports as strangers see them: whether one can be reached, and which this process listens on.
// Thread rule: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::daemon {

// Connects and closes. TIMED_OUT: nothing came back; UNAVAILABLE: why not.
Status reach(const std::string& host, uint16_t port, int timeout_ms);

// "10.0.0.3:4242" for each socket this process listens on, but on those ports.
std::vector<std::string> own_listeners(const std::vector<uint16_t>& but);

// Whether a call to a numeric address and port would now come to one of them. So it is said of a
// port that is no number, too: what a library takes it for is not known.
bool is_own_listener(const std::string& address);
// The same of many addresses: looks once, when it is first asked.
std::function<bool(const std::string& address)> own_listener_check();

// Bytes a second of the interface that leads to an address ("10.0.0.3:4242"), as it says; 0: it
// does not.
double line_rate(const std::string& address);

// A numeric address of a host name or address; empty: none is known.
std::string numeric_host(const std::string& host);
// The same of what is an address: asks no name server. Empty: it is none.
std::string numeric_address(const std::string& address);

}  // namespace cgx::daemon
