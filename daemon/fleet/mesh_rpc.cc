#include "daemon/fleet/mesh_rpc.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "daemon/base/clock.h"
#include "daemon/fleet/fleet.h"
#include "daemon/fleet/look.h"
#include "daemon/fleet/mesh_credentials.h"
#include "daemon/fleet/mesh_messages.h"
#include "daemon/net/guarded_listener.h"
#include "proto/messages/fleet.grpc.pb.h"
#include "proto/messages/mesh.grpc.pb.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {
namespace {

constexpr int kMessageBytesMax = 128 * 1024;
constexpr int kStreamsMax = 16;
constexpr int kReconnectMs = 50;
constexpr size_t kMemoryBytesMax = 64 << 20;
constexpr uint32_t kConnectionsMax = 1024;
constexpr uint32_t kConnectionsPerHostMax = 64;
constexpr const char kHttp2Opening[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr const char kTlsOpening[] = "\x16\x03";  // a handshake record of any version

// "ipv4:10.0.0.2:4242" or "ipv6:%5B::1%5D:4242" -> "10.0.0.2", "::1"
std::string host_of_peer(std::string peer) {
  const size_t scheme = peer.find(':');
  if (scheme == std::string::npos) return {};
  peer.erase(0, scheme + 1);
  for (const auto& [code, character] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    if (const size_t at = peer.find(code); at != std::string::npos) peer.replace(at, 3, character);
  }
  return host_of(peer);
}

}  // namespace

class MeshServer::Service final : public v1::MeshHandshake::CallbackService {
 public:
  Service(MeshListener& listener, TcpListener listening, const MeshInformants& informants)
      : listener_(listener),
        listening_(std::move(listening)),
        look_(informants.look),
        fleet_(informants.fleet) {}
  ~Service() override {
    guard_.reset();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  Status start(const MeshTls& tls, const MeshTimes& times, EdgeCounters& counters,
               const std::function<bool(const std::string&)>& admits) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               static_cast<int>(times.handshake_ns / kMillisecond));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               static_cast<int>(times.idle_ns / kMillisecond));
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    grpc::ResourceQuota quota("cgxd mesh");
    builder.SetResourceQuota(quota.Resize(kMemoryBytesMax));
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        server_credentials(tls));
    builder.RegisterService(this);
    builder.RegisterService(&fleet_);
    server_ = builder.BuildAndStart();
    if (!server_) return internal_error("gRPC refused to start the mesh server");
    const ListenerOptions options{.name = "connections of the mesh",
                                  .opening = tls.empty() ? kHttp2Opening : kTlsOpening,
                                  .opening_timeout_ns = times.handshake_ns,
                                  .alive_max = kConnectionsMax,
                                  .alive_per_host_max = kConnectionsPerHostMax,
                                  .admits = admits};
    const ListenerEvents events{
        .on_connection = [this](UniqueFd connection, int) { serve(std::move(connection)); },
        .on_junk = [&counters] { counters.add(scheduler::Counter::kcontrol_junk); },
        .on_share = [&counters](const scheduler::Share& share) { counters.shares().show(share); }};
    CGX_ASSIGN_OR_RETURN(guard_, GuardedListener::create(listening_.fd.get(), options, events));
    return {};
  }

  grpc::ServerUnaryReactor* Greet(grpc::CallbackServerContext* context,
                                  const v1::GreetRequest* request, v1::GreetReply* reply) override {
    return handle<Challenge>(context, *request, reply, &MeshListener::greeted);
  }
  grpc::ServerUnaryReactor* Prove(grpc::CallbackServerContext* context,
                                  const v1::ProveRequest* request, v1::ProveReply* reply) override {
    return handle<Acceptance>(context, *request, reply, &MeshListener::proved);
  }

  grpc::ServerUnaryReactor* Arrive(grpc::CallbackServerContext* context,
                                   const v1::ArriveRequest* request,
                                   v1::ArriveReply* reply) override {
    return handle<Verdict>(context, *request, reply, &MeshListener::arrived);
  }

  grpc::ServerUnaryReactor* Look(grpc::CallbackServerContext* context,
                                 const v1::LookRequest* request, v1::LookReply* reply) override {
    if (look_ == nullptr) return v1::MeshHandshake::CallbackService::Look(context, request, reply);
    *reply = look_->answer(host_of_peer(context->peer()), *request);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  // The other service at the same door.
  class FleetService final : public v1::Fleet::CallbackService {
   public:
    explicit FleetService(cgx::daemon::Fleet* fleet) : fleet_(fleet) {}

    grpc::ServerUnaryReactor* Show(grpc::CallbackServerContext* context,
                                   const v1::ShowRequest* request, v1::ShowReply* reply) override {
      if (fleet_ == nullptr) return v1::Fleet::CallbackService::Show(context, request, reply);
      *reply = fleet_->answer(host_of_peer(context->peer()), *request);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }

   private:
    cgx::daemon::Fleet* const fleet_;
  };

  // Calls the reactor's Finish exactly once: also when the agent has stopped and drops the answer.
  class Finish {
   public:
    explicit Finish(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
    Finish(Finish&& other) noexcept : reactor_(std::exchange(other.reactor_, nullptr)) {}
    ~Finish() { finish({grpc::StatusCode::UNAVAILABLE, "the daemon is stopping"}); }
    void finish(const grpc::Status& status) {
      if (reactor_ != nullptr) std::exchange(reactor_, nullptr)->Finish(status);
    }

   private:
    grpc::ServerUnaryReactor* reactor_;
  };

  template <typename Answer, typename Request, typename Reply, typename Handler>
  grpc::ServerUnaryReactor* handle(grpc::CallbackServerContext* context, const Request& request,
                                   Reply* reply, Handler handler) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto message = from_message(request);
    if (!message.ok()) {
      reactor->Finish({grpc::StatusCode::INVALID_ARGUMENT, message.status().message()});
      return reactor;
    }
    (listener_.*handler)(host_of_peer(context->peer()), std::move(*message),
                         [reply, finish = Finish(reactor)](Answer answer) mutable {
                           *reply = to_message(answer);
                           finish.finish(grpc::Status::OK);
                         });
    return reactor;
  }

  void serve(UniqueFd connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listening_.fd.get();
    parameters.fd = connection.release();
    acceptor_->HandleNewConnection(&parameters);
  }

  MeshListener& listener_;
  TcpListener listening_;
  cgx::daemon::Look* const look_;
  FleetService fleet_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GuardedListener> guard_;
};

MeshServer::MeshServer(std::unique_ptr<Service> service) : service_(std::move(service)) {}
MeshServer::~MeshServer() = default;

Result<std::unique_ptr<MeshServer>> MeshServer::start(
    TcpListener listening, const MeshTls& tls, const MeshTimes& times, MeshListener& listener,
    EdgeCounters& counters, const MeshInformants& informants,
    const std::function<bool(const std::string&)>& admits) {
  auto service = std::make_unique<Service>(listener, std::move(listening), informants);
  CGX_RETURN_IF_ERROR(service->start(tls, times, counters, admits));
  return std::unique_ptr<MeshServer>(new MeshServer(std::move(service)));
}

namespace {

class GrpcDialer final : public MeshDialer {
 public:
  GrpcDialer(const MeshTls& tls, uint64_t timeout_ns)
      : credentials_(channel_credentials(tls)), timeout_ns_(timeout_ns) {}

  ~GrpcDialer() override {
    MutexLock lock(mutex_);
    for (auto& [id, call] : calls_) call.context.TryCancel();
    while (!calls_.empty()) idle_.wait(mutex_);
  }

  void greet(const std::string& address, const Greeting& greeting,
             MeshAnswer<Challenge> answer) override {
    call<v1::GreetReply>(address, to_message(greeting), std::move(answer),
                         [](auto* stub, auto... args) { stub->async()->Greet(args...); });
  }
  void prove(const std::string& address, const Proof& proof,
             MeshAnswer<Acceptance> answer) override {
    call<v1::ProveReply>(address, to_message(proof), std::move(answer),
                         [](auto* stub, auto... args) { stub->async()->Prove(args...); });
  }
  void arrive(const std::string& address, const Arrival& arrival,
              MeshAnswer<Verdict> answer) override {
    call<v1::ArriveReply>(address, to_message(arrival), std::move(answer),
                          [](auto* stub, auto... args) { stub->async()->Arrive(args...); });
  }
  void forget(const std::string& address) override { stubs_.erase(address); }

  // By our own clock: what waits for one of gRPC's deadlines sleeps until a moment of the wall
  // clock, and sleeps on where that is set back.
  uint64_t expire(uint64_t now_ns) override {
    const MutexLock lock(mutex_);
    uint64_t next = kNever;
    for (auto& [id, call] : calls_) {
      if (call.end_ns <= now_ns) {
        call.end_ns = kNever;
        call.context.TryCancel();
      }
      next = std::min(next, call.end_ns);
    }
    return next;
  }

 private:
  struct Open {
    grpc::ClientContext context;
    uint64_t end_ns = kNever;
  };
  // Everything one call needs, alive until its answer.
  template <typename Request, typename Reply, typename Answer>
  struct Call {
    std::shared_ptr<v1::MeshHandshake::Stub> stub;
    Request request;
    Reply reply;
    Answer answer;
    uint64_t id = 0;
  };

  template <typename Reply, typename Request, typename Answer, typename Start>
  void call(const std::string& address, Request request, Answer answer, Start start) {
    auto* call = new Call<Request, Reply, Answer>{
        stub_for(address), std::move(request), {}, std::move(answer), 0};
    grpc::ClientContext* context = open_call(call->id);
    start(call->stub.get(), context, &call->request, &call->reply,
          std::function<void(grpc::Status)>([this, call](const grpc::Status& status) {
            std::unique_ptr<std::remove_pointer_t<decltype(call)>> owned(call);
            owned->answer(status.ok() ? from_message(owned->reply) : to_status(status));
            owned->stub.reset();
            close_call(owned->id);
          }));
  }

  Status to_status(const grpc::Status& status) const {
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
      return {StatusCode::kUNAVAILABLE, status.error_message()};
    }
    return {StatusCode::kTIMED_OUT,
            "no answer within " + std::to_string(timeout_ns_ / kMillisecond) + " ms"};
  }

  grpc::ClientContext* open_call(uint64_t& id) {
    MutexLock lock(mutex_);
    id = ++next_call_;
    Open& call = calls_[id];
    call.end_ns = monotonic_ns() + timeout_ns_;
    return &call.context;
  }
  void close_call(uint64_t id) {
    MutexLock lock(mutex_);
    calls_.erase(id);
    if (calls_.empty()) idle_.notify_all();
  }

  std::shared_ptr<v1::MeshHandshake::Stub> stub_for(const std::string& address) {
    std::shared_ptr<v1::MeshHandshake::Stub>& stub = stubs_[address];
    if (stub) return stub;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs * 10);
    arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
    stub = v1::MeshHandshake::NewStub(grpc::CreateCustomChannel(address, credentials_, arguments));
    return stub;
  }

  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const uint64_t timeout_ns_;
  std::map<std::string, std::shared_ptr<v1::MeshHandshake::Stub>> stubs_;  // the mesh agent's
  Mutex mutex_;
  Condition idle_;
  std::map<uint64_t, Open> calls_ CGX_GUARDED_BY(mutex_);
  uint64_t next_call_ CGX_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::unique_ptr<MeshDialer>> make_mesh_dialer(const MeshTls& tls, uint64_t timeout_ns) {
  return std::unique_ptr<MeshDialer>(std::make_unique<GrpcDialer>(tls, timeout_ns));
}

}  // namespace cgx::daemon
