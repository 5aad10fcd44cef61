// The mesh handshake over gRPC: the server that hands requests to a MeshListener, and the dialer.
//
// Plain on trusted networks; mutual TLS when certificates are given. Nothing else of the daemon
// sees gRPC or protobuf types of the mesh; sizes of all fields are checked here.
// Thread rule: create and destroy on one thread; calls of MeshDialer from the mesh agent.
// Destroying the server waits for the answers of a running agent; destroying the dialer waits until
// the agent, stopped or not, has been given those under way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/fleet/mesh_tls.h"
#include "daemon/mesh/mesh_agent.h"
#include "daemon/net/tcp_listener.h"

namespace cgx::daemon {

class Fleet;
class Look;

// Who answers questions that operators ask by other daemons; null: they are refused.
struct MeshInformants {
  Look* look = nullptr;
  Fleet* fleet = nullptr;
};

struct MeshTimes {
  uint64_t handshake_ns = 2'000'000'000;  // until a connection has said what it speaks
  uint64_t idle_ns = 30'000'000'000;      // and then without a call
};

class MeshServer {
 public:
  // Serves connections of hosts it `admits` (empty: all) that begin as HTTP/2 (or TLS) does; others
  // are counted in `counters`.
  static Result<std::unique_ptr<MeshServer>> start(
      TcpListener listening, const MeshTls& tls, const MeshTimes& times, MeshListener& listener,
      EdgeCounters& counters, const MeshInformants& informants = {},
      const std::function<bool(const std::string&)>& admits = {});
  ~MeshServer();

 private:
  class Service;
  explicit MeshServer(std::unique_ptr<Service> service);
  std::unique_ptr<Service> service_;
};

Result<std::unique_ptr<MeshDialer>> make_mesh_dialer(const MeshTls& tls, uint64_t timeout_ns);

}  // namespace cgx::daemon
