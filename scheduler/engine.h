// The engine: everything one daemon decides and computes, without I/O, threads or a clock of its
// own.
//
// The daemon feeds it (sessions' requests and records, links that came up or went down, time) and
// it answers through ports. The simulator feeds it the same way, a whole cluster in one thread.
// Thread rule: owned by one agent; every call and every port call-back runs on its thread.
// Invariants: no call blocks; do_work() runs a bounded amount of arithmetic (about one chunk per
// communicator); everything a client or peer sends is checked before use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"
#include "scheduler/costs.h"
#include "scheduler/job_weight.h"
#include "scheduler/plan_history.h"
#include "scheduler/planner_port.h"
#include "scheduler/policy.h"
#include "scheduler/recorder.h"
#include "scheduler/site.h"
#include "scheduler/snapshot.h"
#include "scheduler/survey.h"
#include "transport/transport.h"

namespace cgx::scheduler {

struct SessionId {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;
  friend bool operator==(SessionId, SessionId) = default;
};

// How the engine answers one session. Implemented over the completion ring and the socket.
class SessionPort {
 public:
  virtual ~SessionPort() = default;
  // `text` is empty unless the record is an error; the port stores it and fills the text fields.
  virtual void complete(cgx_completion_record record, std::string_view text) = 0;
  virtual void reply(uint32_t request, const wire::Reply& reply) = 0;
};

struct SessionOptions {
  std::string job;
  std::string client;
  uint32_t uid = 0;
  int32_t pid = 0;
  std::string holder = {};  // who its shares count for (scheduler/shares.h); empty: the uid
};

// Where another daemon of a job is and how to prove membership.
struct LinkRequest {
  std::string job;
  uint32_t uid = 0;
  wire::JobKey job_key{};
  wire::InstanceId instance{};
  std::string mesh_address;
};

// A link between this daemon and another, for one job. Chosen by the engine, dense.
using LinkId = uint32_t;

// Establishes links: mesh handshake, address exchange, transport connect. Answers later through
// Engine::link_up / link_down. Both sides want the link; the port makes one of the two attempts.
class LinkPort {
 public:
  virtual ~LinkPort() = default;
  virtual void open_link(LinkId link, const LinkRequest& request) = 0;
  virtual void close_link(LinkId link) = 0;
};

// What the operator should read about. The daemon logs it; tests collect it.
enum class EventLevel : uint8_t { kInfo, kWarning, kError };
struct EventField {
  EventField(std::string_view field_key, std::string_view value) : key(field_key), text(value) {}
  EventField(std::string_view field_key, uint64_t number)
      : key(field_key), text(std::to_string(number)), is_number(true) {}
  std::string_view key;
  std::string text;
  bool is_number = false;
};
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void event(EventLevel level, std::string_view text) = 0;
  // With what programs look for in fields of their own. Unless overridden they stand behind the
  // text: "job begins job=a uid=1000".
  virtual void note(EventLevel level, std::string_view text, std::span<const EventField> fields);
};

// Finer than the time of a round: how long a piece of arithmetic takes. Not earlier than the round.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() const = 0;
};

struct Timeouts {  // every one can be set in the configuration
  uint64_t heartbeat_ns = 500'000'000;
  uint64_t peer_lost_ns = 4'000'000'000;
  uint64_t stalled_ns = 10'000'000'000;
  uint64_t late_warning_ns = 5'000'000'000;
  uint64_t join_ns = 120'000'000'000;  // ranks of a communicator arrive within this
  uint64_t prepare_ns = 2'000'000'000;
  uint64_t communicator_ns = 1'800'000'000'000;  // default of the communicator's own time-out
  uint64_t residuals_ns = 60'000'000'000;        // a job's, after its last session
};

struct Limits {
  uint32_t sessions = 256;
  uint32_t communicators = 256;
  uint32_t tensors = 65'536;           // per communicator
  uint64_t plan_bytes = 4ull << 30;    // memory plans may reserve, all communicators together
  uint32_t links = 4096;               // to other daemons, one for each job and daemon
  uint64_t shared_bytes = UINT64_MAX;  // arenas of all sessions together
  uint32_t weight = 1000;              // the largest one that counts
};

struct EngineOptions {
  wire::InstanceId instance{};
  std::string mesh_address;  // advertised; empty: one machine only
  std::string name;          // for messages: "node3"
  const kernels::Lane* lane = nullptr;
  Policy policy;  // default of communicators coordinated here
  JobWeights job_weights;
  Timeouts timeouts;
  Limits limits;
  // Communicators coordinated here follow it; null: they plan.
  std::shared_ptr<const std::vector<PlanEntry>> plan_history;
  // For policies of mode auto; null: they stay with the plan they begin with.
  std::shared_ptr<const MachineCosts> costs;
  uint32_t cores = 0;  // for trainers and daemon together; 0: enough
  SearchPace search;
};

// Makes the site at which a machine's host ranks compute, of the one that computes inline.
using SiteMaker = std::function<std::unique_ptr<Site>(std::unique_ptr<Site> inline_site)>;

struct EnginePorts {
  transport::Transport* transport = nullptr;  // null: one machine only
  LinkPort* links = nullptr;
  EventSink* events = nullptr;
  PlanLog* plans = nullptr;        // null: no history is kept
  PlannerPort* planner = nullptr;  // null: plans are made on this thread
  Recorder* recorder = nullptr;    // null: nothing is recorded
  const Clock* clock = nullptr;    // of what is recorded; null: nothing takes time within a round
  SiteMaker site = {};             // null: the inline one
};

struct PolicyRequest {
  std::string job, communicator;  // empty: the only one
  uint32_t uid = 0;
  bool any_uid = false;  // operators may change every job
  Policy policy;
  bool dry_run = false;
};
using PolicyAnswer = std::function<void(const Result<PolicyChange>&)>;

class Engine final : public transport::Events {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                const EnginePorts& ports);
  ~Engine() override;

  // --- Sessions (the caller owns the port; it outlives close_session)
  // -----------------------------
  Result<SessionId> open_session(const SessionOptions& options, SessionPort& port);
  // The arena stays mapped by the caller until session_in_use() is false after close_session.
  Status add_arena(SessionId session, uint32_t arena, std::span<std::byte> memory);
  void close_session(SessionId session, const Status& why);  // kOK: it said goodbye
  bool session_in_use(SessionId session) const;              // something still names its arenas

  // Asked again and again by a rank that has come to meet the others: whether that still has a
  // point.
  void meet(SessionId session, uint32_t request, const wire::Meet& message);
  void create_communicator(SessionId session, uint32_t request,
                           const wire::CreateCommunicator& message);
  void register_tensors(SessionId session, uint32_t request, const wire::RegisterTensors& message);
  void commit(SessionId session, uint32_t request, const wire::Commit& message);
  void redo_step(SessionId session, uint32_t request, const wire::RedoStep& message);
  // Answered when the site has let go of what it had of the communicator.
  void close_communicator(SessionId session, uint32_t request,
                          const wire::CloseCommunicator& message);
  // A record of the submit ring, already copied. An error means the record broke the contract and
  // the session must be closed; refused submits are answered through complete() instead.
  Status submit(SessionId session, const cgx_submit_record& record);

  // --- Links
  // ---------------------------------------------------------------------------------------
  void link_up(LinkId link, transport::PeerId peer);
  void link_down(LinkId link, const Status& why);  // handshake failed or refused

  // --- Transport events
  // ----------------------------------------------------------------------------
  void on_frame(transport::PeerId from, const transport::Frame& frame) override;
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override;
  void on_peer_down(transport::PeerId peer, const Status& why) override;

  // --- Operators
  // -----------------------------------------------------------------------------------
  // What may change while the daemon runs: what communicators made from now on begin with, and from
  // now on every time-out and limit.
  struct Changes {
    Policy policy;
    JobWeights job_weights;
    Timeouts timeouts;
    Limits limits;
  };
  void change(Changes changes);
  // No more sessions and communicators; each of these ends at its next border between steps, and
  // its ranks are told why.
  void drain(const std::string& why);
  std::vector<std::string> undrained() const;  // what has not ended yet, by name and step
  std::vector<std::string> in_flight()
      const;  // operations and open steps, a line each communicator
  Snapshot snapshot(uint64_t now_ns) const;
  // The same a piece at a time: each communicator, which may have gone meanwhile, then the rest.
  std::vector<uint16_t> communicators() const;
  void add_communicator(uint16_t index, Snapshot& shown) const;
  void add_totals(uint64_t now_ns, Snapshot& shown) const;
  // Of one communicator of a session, by the session's handle.
  Result<CommunicatorSnapshot> show(SessionId id, uint32_t comm) const;
  void apply_policy(const PolicyRequest& request, PolicyAnswer answer);
  void count(Counter counter, uint64_t amount = 1);  // for what the daemon itself sees

  // --- Time
  // ----------------------------------------------------------------------------------------
  // When what comes in from now on came in; do_work() says it, too.
  void begin_round(uint64_t now_ns);
  // Runs timers and a bounded amount of operations; does not call transport.progress(). Returns how
  // much was done; 0 means idle until an input or next_deadline_ns().
  int do_work(uint64_t now_ns);
  uint64_t next_deadline_ns() const;  // UINT64_MAX: none
  bool operations_open() const;       // something is in flight: worth a short spin before sleeping

  class State;

 private:
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cgx::scheduler
