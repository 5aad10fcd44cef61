// The loop everything else serves: sessions' rings, the transport, the engine, in one thread.
//
// Thread rule: an agent; engine, transport and sessions are made, used and dropped on its thread.
// Others reach them through the mailbox: ask(), run(), take_plan() and what LinksPort lists.
// Invariants: no call blocks but the sleep; every round is bounded (records per session, messages,
// one chunk per communicator in the engine); completions of a round are published once, at its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/base/agent.h"
#include "daemon/base/mailbox.h"
#include "daemon/data/connecting_links.h"
#include "daemon/data/duty_cycle.h"
#include "daemon/data/links_port.h"
#include "daemon/data/message_share.h"
#include "daemon/data/plan_taker.h"
#include "daemon/data/session.h"
#include "daemon/data/sessions_port.h"
#include "daemon/data/snapshot_board.h"
#include "daemon/gpu/worker_site.h"
#include "scheduler/engine/engine.h"
#include "transport/transport.h"

namespace cgx::daemon {

using TransportFactory =
    UniqueFunction<Result<std::unique_ptr<transport::Transport>>(transport::Events&)>;

struct DataOptions {
  scheduler::EngineOptions engine;
  scheduler::PlanLog* record_plans = nullptr;
  scheduler::ProfileLog* keep_profiles = nullptr;
  std::span<std::byte> recorder_memory;  // outlives the agent; empty: nothing is recorded
  bool always_spin = false;
  uint32_t cores = 1;              // spinning stops when sessions need them all
  bool late_transport = false;     // made when the first other machine is to be reached
  scheduler::SiteMaker site = {};  // of the engine
  std::function<void(const Status&)> on_unfit = {};  // said once: the transport makes no more links
};

class DataAgent final : public Agent,
                        public SessionsPort,
                        public LinksPort,
                        public PlanTaker,
                        private scheduler::LinkPort {
 public:
  // `make_transport` runs on the agent's thread; empty: this daemon serves one machine only.
  DataAgent(DataOptions options, TransportFactory make_transport, EdgeCounters& counters,
            scheduler::EventSink& events);
  ~DataAgent() override;

  // Where answers go, and who makes plans; before start(). `links` may be null: no other machines.
  void connect(SessionAnswers* answers, LinkMaker* links, scheduler::PlannerPort* planner);

  std::string_view name() const override { return "cgxd-data"; }
  Status on_start() override;
  void on_stop() override;
  int do_work(uint64_t now_ns) override;
  uint64_t next_deadline_ns() const override;
  Spin spin() const override;
  bool prepare_sleep() override;
  void woken(std::span<const Poller::Ready> ready) override;

  void ask(SessionRequest request) override;
  void connect_link(LinkSerial serial, transport::ConnectOptions options) override;
  void link_made(LinkSerial serial) override;
  void link_refused(LinkSerial serial, Status why) override;
  void take_plan(UniqueFunction<void()> answer) override;

  // What the agent and its engine are doing, for whoever asks.
  SnapshotBoard& snapshots() { return snapshots_; }

  // Runs `task` between two rounds. False: the agent is too busy to take it, or has stopped.
  using EngineTask = UniqueFunction<void(scheduler::Engine&)>;
  bool run(EngineTask task);

  // Of the engine, and what sessions are told of it. On the agent's thread.
  void change(scheduler::Engine::Changes changes);

 private:
  class EventRelay;
  class DutyClock;
  struct Message {
    const char* what;  // for the duty cycle
    UniqueFunction<void()> handle;
  };
  struct OpenedSession;
  struct Link {
    LinkSerial serial = 0;
    transport::PeerId peer;
    bool connected = false;  // the transport knows the peer
    bool up = false;         // so does the engine, who closes it then
  };
  using Links = std::unordered_map<scheduler::LinkId, Link>;

  // A worker of a GPU that some session has an arena with, and the site that it is.
  struct DeviceSite {
    std::shared_ptr<gpu::Worker> worker;
    gpu::WorkerSite* site = nullptr;  // the engine's
    scheduler::SiteId id = scheduler::kHostSite;
    bool leaves = false;
  };

  void handle(SessionRequest request);
  void open(SessionSerial serial, uint32_t request, OpenSession open);
  void add_arena(OpenedSession& session, uint32_t request, AddMappedArena arena);
  void refuse_arena(const OpenedSession& session, uint32_t request, const AddMappedArena& arena,
                    const Status& why);
  void drop_arena(OpenedSession& session, uint32_t request, uint32_t arena);
  Result<scheduler::SiteId> site_of(const std::shared_ptr<gpu::Worker>& worker);
  void close_device_sites();
  void forget(const DeviceSite& site);
  void close(OpenedSession& session, const Status& why);
  void evict(OpenedSession& session, const Status& why);
  void release_closed();
  OpenedSession* find(SessionSerial serial);
  int poll_sessions();
  int publish_completions();
  bool messages_pause() const;
  int take_messages();
  uint64_t handle(Message message);  // how long it took
  void warn_of_long_round();
  void beat();
  uint64_t communicator_ms() const;
  void look_at_transport();
  void lower_sleeping();
  void flush_counters();
  int make_snapshot();
  void add_gpus(scheduler::Snapshot& shown) const;
  bool snapshot_due(uint64_t now_ns) const;

  void open_link(scheduler::LinkId link, const scheduler::LinkRequest& request) override;
  void close_link(scheduler::LinkId link) override;
  Status listen();
  Status want_link(LinkSerial serial, const scheduler::LinkRequest& request);
  void connect_peer(LinkSerial serial, const transport::ConnectOptions& options);
  void bring_up(LinkSerial serial);
  void refuse(LinkSerial serial, const Status& why);
  Links::iterator find_link(LinkSerial serial);

  DataOptions options_;
  TransportFactory make_transport_;
  EdgeCounters& counters_;
  scheduler::EventSink& events_;
  SessionAnswers* answers_ = nullptr;
  LinkMaker* links_out_ = nullptr;
  scheduler::PlannerPort* planner_ = nullptr;

  Mailbox<Message> mailbox_;
  std::vector<std::unique_ptr<OpenedSession>> sessions_;
  std::vector<DeviceSite> device_sites_;
  std::vector<std::unique_ptr<OpenedSession>> closed_;  // operations may still touch their memory
  std::unique_ptr<EventRelay> relay_;
  std::unique_ptr<DutyClock> clock_;
  std::unique_ptr<transport::Transport> transport_;  // null: one machine only
  std::optional<scheduler::Recorder> recorder_;
  std::unique_ptr<scheduler::Engine> engine_;
  transport::Endpoint endpoint_;
  bool unfit_ = false;                    // transport_ is
  bool listening_ = false;                // endpoint_ is known
  Links links_;                           // those the engine has open
  ConnectingLinks connecting_;            // connected, not up
  transport::Transport::Totals counted_;  // of the transport's, what the engine has counted
  LinkSerial next_link_ = 1;
  bool overflowing_ = false;
  // Nothing is open: if the next round finds nothing else, the sleep that follows ends at once when
  // frames are there. Ranks that have just been told get the core a system call sooner.
  bool leave_transport_ = false;
  DutyCycle duty_{thread_cpu_ns};
  struct Showing {  // a snapshot that is being made
    scheduler::Snapshot shown;
    std::vector<uint16_t> left;  // communicators, the next one last
    uint64_t took_ns = 0;
  };
  std::unique_ptr<Showing> showing_;  // null: none is
  uint64_t next_snapshot_ns_ = 0;     // when another may begin
  SnapshotBoard snapshots_{[this] { mailbox_.wake(); }};
  uint64_t now_ns_ = 0, next_beat_ns_ = 0;
  MessageShare messages_;
  ThreadOwner owner_;
};

}  // namespace cgx::daemon
