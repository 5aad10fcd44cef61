#include "daemon/operators/user_servers.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <chrono>

namespace cgx::daemon {
namespace {

constexpr int kMessageBytesMax = 1 << 20;  // a policy; answers may be larger
constexpr int kThreadsMax = 8;             // per server: calls beyond it wait for a thread or fail
constexpr int kStreamsMax = 16;
constexpr int kKeepaliveMs = 30'000;

}  // namespace

void apply_limits(grpc::ServerBuilder& builder, uint64_t idle_ns) {
  using Option = grpc::ServerBuilder::SyncServerOption;
  grpc::ResourceQuota quota("cgxd control");
  quota.SetMaxThreads(kThreadsMax);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(Option::NUM_CQS, 1);
  builder.SetSyncServerOption(Option::MIN_POLLERS, 1);
  builder.SetSyncServerOption(Option::MAX_POLLERS, 2);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(idle_ns / 1'000'000));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 * 1024);
}

UserServers::~UserServers() {
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(1);
  for (UserServer& one : servers_) one.server->Shutdown(deadline);
}

Status UserServers::serve(UniqueFd connection, const Caller& caller) {
  CGX_ASSIGN_OR_RETURN(UserServer * user, find_or_start(caller));
  grpc::AddInsecureChannelFromFd(user->server.get(), connection.release());
  return {};
}

Result<UserServers::UserServer*> UserServers::find_or_start(const Caller& caller) {
  const auto known = std::find_if(servers_.begin(), servers_.end(),
                                  [&](const UserServer& one) { return one.caller == caller; });
  if (known != servers_.end()) {
    servers_.splice(servers_.begin(), servers_, known);
    return &servers_.front();
  }
  CGX_RETURN_IF_ERROR(make_room());
  UserServer user{.caller = caller};
  user.calls = std::make_unique<ControlCalls>(
      context_, [caller](const grpc::ServerContext&) { return caller; });
  grpc::ServerBuilder builder;
  apply_limits(builder, idle_ns_);
  builder.RegisterService(user.calls.get());
  user.server = builder.BuildAndStart();
  if (user.server == nullptr) return internal_error("gRPC refused to start a control server");
  servers_.push_front(std::move(user));
  return &servers_.front();
}

Status UserServers::make_room() {
  if (servers_.size() < kUserServersMax) return {};
  const auto idle = std::find_if(servers_.rbegin(), servers_.rend(),
                                 [](const UserServer& one) { return one.calls->in_flight() == 0; });
  if (idle == servers_.rend()) {
    return resource_exhausted("control calls of " + std::to_string(servers_.size()) +
                              " users are running; no more users are served");
  }
  idle->server->Shutdown(std::chrono::system_clock::now());
  servers_.erase(std::next(idle).base());
  return {};
}

}  // namespace cgx::daemon
