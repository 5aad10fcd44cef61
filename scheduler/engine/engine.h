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
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/session_messages.h"
#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"
#include "scheduler/communicator/engine_options.h"
#include "transport/transport.h"

namespace cgx::scheduler {

class Engine final : public transport::Events {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                const EnginePorts& ports);
  ~Engine() override;

  // Sessions (the caller owns the port; it outlives close_session)
  Result<SessionId> open_session(const SessionOptions& options, SessionPort& port);
  // The arena stays mapped by the caller until session_in_use() is false after close_session.
  Status add_arena(SessionId session, uint32_t arena, std::span<std::byte> memory);
  // An arena that only a site of add_site() reaches.
  Status add_arena(SessionId session, uint32_t arena, const SiteMemory& memory);
  // One of a site's: its number names nothing until another arena of the site gets it. Whoever
  // still names places in it is refused by the site, or reaches what comes after it there.
  Status drop_arena(SessionId session, uint32_t arena);
  void close_session(SessionId session, const Status& why);  // kOK: it said goodbye
  bool session_in_use(SessionId session) const;              // something still names its arenas

  // Asked again and again by a rank that has come to meet the others: whether that still has a
  // point.
  void meet(SessionId session, uint32_t request, const wire::Meet& message);
  void create_communicator(SessionId session, uint32_t request,
                           const wire::CreateCommunicator& message);
  void register_tensors(SessionId session, uint32_t request, wire::RegisterTensors message);
  void commit(SessionId session, uint32_t request, const wire::Commit& message);
  void redo_step(SessionId session, uint32_t request, const wire::RedoStep& message);
  // Answered when the site has let go of what it had of the communicator.
  void close_communicator(SessionId session, uint32_t request,
                          const wire::CloseCommunicator& message);
  // A record of the submit ring, already copied. An error means the record broke the contract and
  // the session must be closed; refused submits are answered through complete() instead.
  Status submit(SessionId session, const cgx_submit_record& record);

  // Sites beside the host's. Frames of their communicators lie in slabs of the memory given.
  using SiteBuilder =
      std::function<std::unique_ptr<Site>(std::shared_ptr<SlabStore> slabs, const ArenaTable&)>;
  SiteId add_site(std::shared_ptr<SlabMemory> memory, const SiteBuilder& build);
  // No arena is added there any more; it goes when nobody uses it. True: it has gone.
  bool close_site(SiteId site);
  // It does not go after all, as somebody comes with an arena. False: it has gone.
  bool keep_site(SiteId site);

  // Links
  void link_up(LinkId link, transport::PeerId peer);
  void link_down(LinkId link, const Status& why);  // handshake failed or refused

  // Transport events
  void on_frame(transport::PeerId from, const transport::Frame& frame) override;
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override;
  void on_peer_down(transport::PeerId peer, const Status& why) override;
  void on_bytes(transport::PeerId from) override;

  // Operators
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
  std::vector<std::string> undrained() const;    // what has not ended yet, by name and step
  std::vector<std::string> last_frames() const;  // which other daemons have not taken in yet
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
  void explain(const ExplainRequest& request, const ExplainAnswer& answer);
  void what_if(const WhatIfRequest& request, const WhatIfAnswer& answer);
  void profile(const ProfileRequest& request, const ProfileAnswer& answer);
  void count(Counter counter, uint64_t amount = 1);  // for what the daemon itself sees

  // Time
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
