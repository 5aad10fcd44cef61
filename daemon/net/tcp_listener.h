// A listening TCP socket, bound before anything is told its port. Thread rule: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/net/networks.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

struct TcpListener {
  UniqueFd fd;
  std::string host;  // numeric; "0.0.0.0" or "::" when it listens everywhere
  uint16_t port = 0;

  // `address`: "10.0.0.3:7701", "0.0.0.0:0", "[::1]:7701"; `key` names it in errors: "mesh.listen".
  static Result<TcpListener> open(const std::string& address, const std::string& key);
};

// Where others reach a listener: its own address, or, if it listens everywhere, those of this
// machine's interfaces that lie in `networks`, IPv4 first, loopback only when there is nothing
// else.
std::vector<std::string> reachable_addresses(const TcpListener& listener,
                                             const NetworkList& networks);

}  // namespace cgx::daemon
