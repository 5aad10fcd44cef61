// The transports of transport/transports.def, made from the configuration's words.
// Thread rule: pure but for reading which interfaces there are; call before any thread exists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/data/data_agent.h"
#include "daemon/net/interfaces.h"
#include "proto/messages/config.pb.h"

namespace cgx::daemon {

struct TransportChoice {
  std::string name;
  TransportFactory make;
};

// `config` is complete, mesh.network resolved.
Result<TransportChoice> choose_transport(const v1::Config& config);

// As many as tcp listens on: that of mesh.listen, then in the system's order.
std::vector<std::string> hosts_of(const v1::Config& config,
                                  const std::vector<InterfaceAddress>& addresses);

// Empty: all there are. TCP is given those with an address in the trusted networks, whatever else
// UCX may use; `rdma` is where the system lists those of RDMA.
Result<std::vector<std::string>> ucx_devices(const v1::Config& config,
                                             const std::string& rdma = "/sys/class/infiniband");

Status check_transport(std::string_view name);           // "auto", or a row
std::string transport_name(const v1::Transport& words);  // what "auto" stands for, or as it is
std::string transport_names();                           // "auto, ucx, tcp"

}  // namespace cgx::daemon
