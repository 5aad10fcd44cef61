// This machine's network interfaces. Thread rule: pure functions of the system's state.
#pragma once

#include <string>
#include <vector>

#include "daemon/net/networks.h"

namespace cgx::daemon {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string host;       // numeric
};

// Of the interfaces that are up, IPv4 first; link-local IPv6 needs a scope and is left out.
std::vector<InterfaceAddress> interface_addresses();

// Those inside `networks`.
std::vector<InterfaceAddress> interface_addresses(const NetworkList& networks);

// An address to listen on for other daemons: one that they may call, or all of this machine's.
Status check_listen(const std::string& host, const NetworkList& trusted);

// "KEY: no interface of this machine has an address in ..."
Status in_no_network(const std::string& key, const NetworkList& networks);

}  // namespace cgx::daemon
