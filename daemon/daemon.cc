#include "daemon/daemon.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>

#include "daemon/base/clock.h"
#include "daemon/data/duty_cycle.h"
#include "daemon/data/pooled_site.h"
#include "daemon/net/interfaces.h"
#include "kernels/speeds.h"
#include "proto/wire/cores.h"
#include "scheduler/planners/proposal.h"
#include "scheduler/sim/cost_file.h"

namespace cgx::daemon {
namespace {

constexpr uint32_t kSpinCoresMin = 4;
constexpr uint64_t kAnswerNs = 500 * kMillisecond;
constexpr uint16_t kMeshPort = 7070;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

Status check_threads(uint32_t threads, uint32_t cores) {
  if (threads <= cores) return {};
  return invalid_argument("arithmetic.threads is " + std::to_string(threads) +
                          ", but this process may use " + std::to_string(cores) +
                          " core (cpuset and cgroup counted)");
}

Status check_spinning(bool always_spin, uint32_t cores) {
  if (!always_spin || cores >= kSpinCoresMin) return {};
  return invalid_argument("waiting.always_spin needs at least " + std::to_string(kSpinCoresMin) +
                          " cores, this process may use " + std::to_string(cores) +
                          " (cpuset and cgroup counted): the trainers would wait for the daemon");
}

Result<std::string> advertised(const DaemonOptions& options, const TcpListener& listener,
                               const NetworkList& trusted) {
  if (!options.advertise.empty()) return join(options.advertise);
  CGX_RETURN_IF_ERROR(check_listen(listener.host, trusted));
  const std::vector<std::string> addresses = reachable_addresses(listener, trusted);
  if (!addresses.empty()) return join(addresses);
  return invalid_argument(
      "mesh.listen: no interface of this machine has an address in "
      "mesh.trusted_networks (" +
      trusted.to_string() + "); add a network or set mesh.advertise");
}

// Of the lane that computes: what mode auto chooses from unless it is told otherwise comes first.
std::shared_ptr<const scheduler::MachineCosts> costs_of(const kernels::Lane& lane) {
  const Result<scheduler::MachineCosts> table =
      scheduler::sim::parse_costs(scheduler::sim::builtin_costs(), "the built-in costs", lane.name);
  if (!table.ok()) return nullptr;
  std::vector<CodecSpec> specs = scheduler::default_menu();
  for (const scheduler::CodecCurves& row : table->codecs) {
    if (std::find(specs.begin(), specs.end(), row.spec) == specs.end()) specs.push_back(row.spec);
  }
  return std::make_shared<const scheduler::MachineCosts>(
      timed_here(*table, kernels::measure_speeds(lane, specs, thread_cpu_ns)));
}

// Where operators look for other machines' daemons: this one's configured port is theirs, too.
uint16_t usual_port(const std::string& mesh_listen) {
  const auto port = std::strtoul(mesh_listen.c_str() + mesh_listen.rfind(':') + 1, nullptr, 10);
  return port == 0 ? kMeshPort : static_cast<uint16_t>(port);
}

// Where no port is configured and other machines can come: the one they guess, if it is free.
Result<TcpListener> listen_for_mesh(const std::string& address) {
  const std::string host = host_of(address);
  if (address == address_of(host, 0) && !NetworkList::loopback().contains(host)) {
    Result<TcpListener> usual = TcpListener::open(address_of(host, kMeshPort), "mesh.listen");
    if (usual.ok()) return usual;
  }
  return TcpListener::open(address, "mesh.listen");
}

DataOptions data_options(const DaemonOptions& options, const kernels::Lane& lane,
                         const wire::InstanceId& instance, const std::string& mesh_address,
                         std::span<std::byte> recorder_memory) {
  return {.engine = {.instance = instance,
                     .mesh_address = mesh_address,
                     .name = options.name,
                     .lane = &lane,
                     .policy = options.policy,
                     .job_weights = options.job_weights,
                     .timeouts = options.timeouts,
                     .limits = options.limits,
                     .plan_history = options.replay_plans,
                     .profiles = options.profiles,
                     .costs = costs_of(lane),
                     .cores = usable_cores()},
          .record_plans = options.record_plans,
          .keep_profiles = options.keep_profiles,
          .recorder_memory = recorder_memory,
          .always_spin = options.always_spin,
          .cores = usable_cores(),
          .late_transport = NetworkList::loopback().contains(host_of(options.mesh_listen)),
          .site = options.site ? options.site : pooled_site(options.compute_threads),
          .on_unfit = options.on_unfit};
}

}  // namespace

// The server waits for calls into the running agent, the dialer for answers to the agent, which
// must exist: so server, thread, dialer, agent.
struct Daemon::Mesh {
  std::unique_ptr<MeshAgent> agent;
  std::unique_ptr<MeshDialer> dialer;
  std::unique_ptr<AgentThread> thread;
  std::unique_ptr<MeshServer> server;

  ~Mesh() { stop(); }
  // Nobody comes in and nobody is dialed any more; the agent may still be spoken to.
  void stop() {
    server.reset();
    thread.reset();
  }
};

Daemon::Arithmetic Daemon::tuned(const kernels::Lane& lane) {
  const uint64_t began_ns = monotonic_ns();
  const kernels::Tuning tuning = kernels::measure_tuning(lane, thread_cpu_ns);
  return {lane.with(tuning), monotonic_ns() - began_ns};
}

Daemon::Daemon(const DaemonOptions& options, const Arithmetic& arithmetic,
               TransportFactory make_transport, scheduler::EventSink& events,
               const std::string& mesh_address, OwnMemfd recorder)
    : instance_(new_instance()),
      mesh_address_(mesh_address),
      lane_(arithmetic.lane),
      tuning_ns_(arithmetic.tuning_ns),
      recorder_(std::move(recorder)),
      data_(data_options(options, lane_, instance_, mesh_address, recorder_.region.bytes()),
            std::move(make_transport), counters_, events),
      planner_(data_),
      operators_(data_, recorder_.region.bytes(), counters_.shares()) {}

Daemon::~Daemon() {
  ipc_thread_.reset();
  if (mesh_) mesh_->stop();
  data_thread_.reset();  // until here it speaks to the agents of the edges
  planner_.hurry();
  planner_thread_.reset();
}

Status Daemon::check(const DaemonOptions& options) {
  CGX_RETURN_IF_ERROR(check_spinning(options.always_spin, usable_cores()));
  CGX_RETURN_IF_ERROR(check_threads(options.compute_threads, usable_cores()));
  return kernels::find_lane(options.lane).status();
}

Result<std::unique_ptr<Daemon>> Daemon::start(const DaemonOptions& options,
                                              TransportFactory make_transport,
                                              scheduler::EventSink& events) {
  CGX_RETURN_IF_ERROR(check(options));
  CGX_ASSIGN_OR_RETURN(const kernels::Lane* lane, kernels::find_lane(options.lane));
  CGX_ASSIGN_OR_RETURN(const NetworkList trusted, NetworkList::parse(options.trusted_networks));
  const bool meshed = !options.mesh_listen.empty();
  TcpListener listener;
  std::string mesh_address;
  if (meshed) {
    CGX_ASSIGN_OR_RETURN(listener, listen_for_mesh(options.mesh_listen));
    CGX_ASSIGN_OR_RETURN(mesh_address, advertised(options, listener, trusted));
  }
  OwnMemfd recorder;
  if (options.recorder_events > 0) {
    CGX_ASSIGN_OR_RETURN(recorder, make_recorder_memory(options.recorder_events));
  }
  std::unique_ptr<Daemon> daemon(new Daemon(options, tuned(*lane), std::move(make_transport),
                                            events, mesh_address, std::move(recorder)));
  // The socket's name is taken first: a second daemon must not get as far as joining anything.
  CGX_RETURN_IF_ERROR(daemon->open_ipc(options, events));
  if (meshed) CGX_RETURN_IF_ERROR(daemon->make_mesh(options, trusted, events));
  daemon->data_.connect(daemon->ipc_.get(), meshed ? daemon->mesh_->agent.get() : nullptr,
                        &daemon->planner_);
  CGX_ASSIGN_OR_RETURN(daemon->planner_thread_, AgentThread::start(daemon->planner_));
  CGX_ASSIGN_OR_RETURN(daemon->data_thread_, AgentThread::start(daemon->data_, options.spin_ns));
  if (meshed) CGX_RETURN_IF_ERROR(daemon->start_mesh(options, trusted, std::move(listener)));
  return daemon;
}

Status Daemon::serve() {
  CGX_ASSIGN_OR_RETURN(ipc_thread_, AgentThread::start(*ipc_));
  return {};
}

Status Daemon::open_ipc(const DaemonOptions& options, scheduler::EventSink& events) {
  IpcOptions ipc = options.ipc;
  ipc.instance = instance_;
  ipc.mesh_address = mesh_address_;
  ipc.version = options.version;
  CGX_ASSIGN_OR_RETURN(ipc_, IpcAgent::create(ipc, {data_, counters_, events}));
  return {};
}

Status Daemon::make_mesh(const DaemonOptions& options, const NetworkList& trusted,
                         scheduler::EventSink& events) {
  mesh_ = std::make_unique<Mesh>();
  CGX_ASSIGN_OR_RETURN(mesh_->dialer, make_mesh_dialer(options.mesh_tls, options.ipc.handshake_ns));
  fleet_ = std::make_unique<Fleet>(FleetFacts{.name = options.name,
                                              .mesh_address = mesh_address_,
                                              .trusted = trusted,
                                              .tls = options.mesh_tls},
                                   operators_);
  const MeshOptions mesh{.instance = instance_,
                         .name = options.name,
                         .program = options.version,
                         .address = mesh_address_,
                         .cluster_key = options.cluster_key,
                         .trusted = trusted,
                         .look_at_own = options.look_at_own,
                         .deadline_ns = options.timeouts.join_ns};
  mesh_->agent = std::make_unique<MeshAgent>(
      mesh, MeshAgent::Ports{data_, *mesh_->dialer, counters_, events, &fleet_->keys()});
  return {};
}

Status Daemon::start_mesh(const DaemonOptions& options, const NetworkList& trusted,
                          TcpListener listener) {
  LookFacts facts{.name = options.name,
                  .mesh_address = mesh_address_,
                  .trusted = trusted,
                  .agreed = options.agreed,
                  .cluster_key = options.cluster_key,
                  .tls = options.mesh_tls,
                  .other_ports = options.other_ports,
                  .usual_port = usual_port(options.mesh_listen)};
  facts.other_ports.push_back(listener.port);
  look_ = std::make_unique<Look>(std::move(facts), operators_);
  const auto admits = [trusted](const std::string& host) { return trusted.contains(host); };
  CGX_ASSIGN_OR_RETURN(mesh_->thread, AgentThread::start(*mesh_->agent));
  CGX_ASSIGN_OR_RETURN(mesh_->server,
                       MeshServer::start(std::move(listener), options.mesh_tls,
                                         {.handshake_ns = options.ipc.handshake_ns}, *mesh_->agent,
                                         counters_, {look_.get(), fleet_.get()}, admits));
  return {};
}

// The promise is shared with the data thread, which may answer after we have given up.
bool Daemon::ask_engine(uint64_t within_ns, UniqueFunction<bool(scheduler::Engine&)> question) {
  auto promise = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = promise->get_future();
  const bool taken =
      data_.run([promise, question = std::move(question)](scheduler::Engine& engine) mutable {
        promise->set_value(question(engine));
      });
  const auto limit = std::chrono::nanoseconds(within_ns);
  return taken && answer.wait_for(limit) == std::future_status::ready && answer.get();
}

void Daemon::drain(const std::string& why) {
  ipc_->stop_accepting(why);
  ask_engine(kAnswerNs, [why](scheduler::Engine& engine) {
    engine.drain(why);
    return true;
  });
}

std::optional<std::vector<std::string>> Daemon::ask_names(
    std::vector<std::string> (scheduler::Engine::*names)() const) {
  auto answer = std::make_shared<std::vector<std::string>>();
  const bool answered = ask_engine(kAnswerNs, [answer, names](scheduler::Engine& engine) {
    *answer = (engine.*names)();
    return true;
  });
  if (!answered) return std::nullopt;
  return *answer;
}

std::optional<std::vector<std::string>> Daemon::undrained() {
  return ask_names(&scheduler::Engine::undrained);
}

std::optional<std::vector<std::string>> Daemon::last_frames() {
  return ask_names(&scheduler::Engine::last_frames);
}

std::optional<std::vector<std::string>> Daemon::in_flight() {
  return ask_names(&scheduler::Engine::in_flight);
}

bool Daemon::alive(uint64_t within_ns) {
  return ask_engine(within_ns, [](scheduler::Engine&) { return true; });
}

// Whoever is first, the data thread that makes the change or we who give it up, has decided it.
bool Daemon::change(scheduler::Engine::Changes changes) {
  const auto decided = std::make_shared<std::atomic<bool>>(false);
  const bool answered = ask_engine(
      kAnswerNs, [this, decided, changes = std::move(changes)](scheduler::Engine&) mutable {
        if (!decided->exchange(true)) data_.change(std::move(changes));
        return true;
      });
  return answered || decided->exchange(true);
}

}  // namespace cgx::daemon
