// The whole daemon: makes the agents, connects them, starts and stops them in order.
//
// Thread rule: create, use and destroy on one thread (main).
// Start order: mesh port and client socket (names are taken), planner, data agent, mesh agent, mesh
// server, ipc agent (clients are served).
// Stop order: ipc agent (clients see the end), mesh server, mesh agent, data agent, planner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/shared_region.h"
#include "daemon/data/data_agent.h"
#include "daemon/fleet/fleet.h"
#include "daemon/fleet/look.h"
#include "daemon/fleet/mesh_rpc.h"
#include "daemon/ipc/ipc_agent.h"
#include "daemon/mesh/mesh_agent.h"
#include "daemon/net/tcp_listener.h"
#include "daemon/operators/mailbox_operator.h"
#include "daemon/planner/planner_agent.h"
#include "kernels/codec.h"

namespace cgx::daemon {

struct DaemonOptions {
  std::string name;     // of this machine, for messages
  std::string version;  // "cgxd 0.1.0"
  std::string lane = "auto";
  IpcOptions ipc;  // socket and limits; instance and addresses are filled at the start
  scheduler::Policy policy;
  scheduler::JobWeights job_weights;
  scheduler::Timeouts timeouts;
  scheduler::Limits limits;
  scheduler::PlanLog* record_plans = nullptr;
  uint64_t recorder_events = 0;  // a power of two; 0: nothing is recorded
  std::shared_ptr<const std::vector<scheduler::PlanEntry>> replay_plans;
  scheduler::ProfileLog* keep_profiles = nullptr;
  std::shared_ptr<const scheduler::KeptProfiles> profiles;  // kept before; null: none
  uint64_t spin_ns = 20'000;
  bool always_spin = false;
  uint32_t compute_threads = 1;
  scheduler::SiteMaker site = {};  // empty: it computes inline
  // Said once, from the data thread: no link can be made any more, it should be started again.
  std::function<void(const Status&)> on_unfit = {};

  std::string mesh_listen;             // empty: one machine only
  std::vector<std::string> advertise;  // empty: computed
  std::vector<std::string> trusted_networks = {"127.0.0.0/8", "::1/128"};
  std::string cluster_key;
  MeshTls mesh_tls;
  AgreedKeys agreed;                  // for operators who look at several machines
  std::vector<uint16_t> other_ports;  // that will be listened on beside mesh and data path
  // Where this process listens; empty: several daemons share it, as in tests.
  std::function<IsOwn()> look_at_own = {};
};

class Daemon {
 public:
  // What start() asks of this machine before it opens anything.
  static Status check(const DaemonOptions& options);
  // `make_transport` may be empty if mesh_listen is.
  static Result<std::unique_ptr<Daemon>> start(const DaemonOptions& options,
                                               TransportFactory make_transport,
                                               scheduler::EventSink& events);
  // Until now clients have waited at the socket: whoever starts the daemon may still find that it
  // cannot serve.
  Status serve();
  ~Daemon();

  OperatorPort& operators() { return operators_; }
  Look* look() { return look_.get(); }     // null: one machine only
  Fleet* fleet() { return fleet_.get(); }  // likewise
  EdgeCounters& counters() { return counters_; }
  const std::string& mesh_address() const { return mesh_address_; }
  const wire::InstanceId& instance() const { return instance_; }
  const kernels::Lane& lane() const { return lane_; }  // tuned to this machine
  uint64_t tuning_ns() const { return tuning_ns_; }    // what that took

  // Sessions: those open now, and whether anybody is connected at all.
  uint32_t sessions_open() const { return ipc_->sessions_open(); }
  uint64_t sessions_ever() const { return ipc_->sessions_ever(); }
  bool connected() const { return ipc_->connections() > 0; }
  void stop_accepting() { ipc_->stop_accepting(); }
  // Everything ends at its next border between steps and is told why.
  void drain(const std::string& why);
  // What has not; nullopt: the data thread does not answer in time.
  std::optional<std::vector<std::string>> undrained();
  std::optional<std::vector<std::string>> last_frames();  // likewise; of ranks that have left
  // Operations and open steps, a line each communicator; nullopt: as above.
  std::optional<std::vector<std::string>> in_flight();
  // The data thread goes on: it has answered within the time.
  bool alive(uint64_t within_ns);
  // For communicators made from now on; false: the data thread is too busy or gone.
  bool change(scheduler::Engine::Changes changes);

 private:
  struct Mesh;

  bool ask_engine(uint64_t within_ns, UniqueFunction<bool(scheduler::Engine&)> question);
  std::optional<std::vector<std::string>> ask_names(
      std::vector<std::string> (scheduler::Engine::*names)() const);
  struct Arithmetic {
    kernels::Lane lane;
    uint64_t tuning_ns;
  };
  static Arithmetic tuned(const kernels::Lane& lane);

  Daemon(const DaemonOptions& options, const Arithmetic& arithmetic,
         TransportFactory make_transport, scheduler::EventSink& events,
         const std::string& mesh_address, OwnMemfd recorder);
  Status open_ipc(const DaemonOptions& options, scheduler::EventSink& events);
  Status make_mesh(const DaemonOptions& options, const NetworkList& trusted,
                   scheduler::EventSink& events);
  Status start_mesh(const DaemonOptions& options, const NetworkList& trusted, TcpListener listener);

  const wire::InstanceId instance_;
  const std::string mesh_address_;
  const kernels::Lane lane_;
  const uint64_t tuning_ns_;
  EdgeCounters counters_;
  const OwnMemfd recorder_;  // its descriptor is for whoever looks into a daemon that hangs
  DataAgent data_;
  PlannerAgent planner_;
  MailboxOperator operators_;
  std::unique_ptr<Look> look_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<IpcAgent> ipc_;
  std::unique_ptr<AgentThread> planner_thread_, data_thread_, ipc_thread_;
};

}  // namespace cgx::daemon
