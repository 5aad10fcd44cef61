// One gRPC server per user of the Unix socket: the server a call reaches says who called.
//
// Invariants: at most kUserServersMax servers; the longest unused one without a running call makes
// room. Thread rule: owned by the listener's thread after creation; destroyed after it has ended.
#pragma once

#include <grpcpp/grpcpp.h>

#include <list>
#include <memory>

#include "daemon/operators/control_calls.h"
#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

constexpr size_t kUserServersMax = 16;

// Limits every control server has: message sizes, streams, threads, and how long a connection may
// be without a call.
void apply_limits(grpc::ServerBuilder& builder, uint64_t idle_ns);

class UserServers {
 public:
  UserServers(const ControlContext& context, uint64_t idle_ns)
      : context_(context), idle_ns_(idle_ns) {}
  ~UserServers();

  // Takes the connection; closes it and says why when it cannot be served.
  Status serve(UniqueFd connection, const Caller& caller);

 private:
  struct UserServer {
    Caller caller;
    std::unique_ptr<ControlCalls> calls;
    std::unique_ptr<grpc::Server> server;
  };
  Result<UserServer*> find_or_start(const Caller& caller);
  Status make_room();

  const ControlContext& context_;
  const uint64_t idle_ns_;
  std::list<UserServer> servers_;  // most recently used first
};

}  // namespace cgx::daemon
