// One communicator on this machine: who has joined, what was agreed, and the two runners.
//
//   joining -> ready -> running <-> frozen        (a failure that can be redone: a new term)
//      \---------\---------\----------\--> failed (permanent) -> closed
//
// Frozen (PROTOCOL 26): each machine says Flush behind its last frame and takes results in until it
// has everybody's; then it reports, and the coordinator starts the next term. What local ranks say
// meanwhile is held until then. A joining that failed is remembered a little while after its last
// local rank has gone: whoever still comes to that meeting is told.
//
// Everything local ranks and peers say passes here, is checked and goes to a runner or the plan
// agreement; everything that must be said goes out through CommunicatorPort. Owned by the
// engine.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/communicator/attempts.h"
#include "scheduler/communicator/call_runner.h"
#include "scheduler/communicator/ceiling_watch.h"
#include "scheduler/communicator/commit_tables.h"
#include "scheduler/communicator/control.h"
#include "scheduler/communicator/engine_options.h"
#include "scheduler/communicator/joining.h"
#include "scheduler/communicator/kept_by_name.h"
#include "scheduler/communicator/kept_profiles.h"
#include "scheduler/communicator/link_table.h"
#include "scheduler/communicator/machine_profiles.h"
#include "scheduler/communicator/members.h"
#include "scheduler/communicator/peers.h"
#include "scheduler/communicator/plan_agreement.h"
#include "scheduler/communicator/policy_desk.h"
#include "scheduler/communicator/replica_watch.h"
#include "scheduler/communicator/step_runner.h"
#include "scheduler/communicator/terms.h"
#include "scheduler/planners/answer_meter.h"
#include "scheduler/planners/link_probe.h"
#include "scheduler/planners/pilot.h"
#include "scheduler/planners/plan_times.h"
#include "scheduler/planners/step_meter.h"
#include "scheduler/shares.h"

namespace cgx::scheduler {

class CommunicatorPort {
 public:
  virtual ~CommunicatorPort() = default;
  virtual const EngineOptions& options() const = 0;
  virtual const std::shared_ptr<SlabStore>& slabs(SiteId site) = 0;
  virtual uint64_t now_ns() const = 0;
  virtual Share plan_share() const = 0;  // of Limits::plan_bytes
  virtual Site& site(SiteId site) = 0;
  virtual Ticket new_ticket() = 0;
  // The answer goes to settle(); the communicator stays until it has come.
  virtual void expect(Ticket ticket, class Communicator& communicator, Operation& operation) = 0;
  struct Arena {
    ArenaId id = kNoArena;
    uint64_t bytes = 0;
    SiteId site = kHostSite;
  };
  virtual Arena arena(SessionId session, uint32_t arena) const = 0;  // of no bytes if there is none
  virtual void count(Counter counter, uint64_t amount) = 0;
  virtual void event(EventLevel level, const std::string& text) = 0;
  virtual void note(EventLevel level, std::string_view text,
                    std::initializer_list<EventField> fields) = 0;
  virtual PlanLog* plan_log() = 0;  // null: no history is kept
  virtual PlannerPort& planner() = 0;
  virtual KeptPolicies& kept_policies() = 0;
  virtual KeptProfiles& kept_profiles() = 0;
  virtual ProfileLog* profile_log() = 0;  // null: they end with the engine
  // Communicators of that name that have repeated plans of a history.
  virtual size_t& replayed(const KeptFor& whose) = 0;
  virtual ResidualStore& residuals() = 0;
  // Memory that nobody needs any more; empty: nothing to do.
  virtual void release(std::vector<Residuals::Memory> memory) = 0;
  virtual uint16_t new_index() = 0;  // of a communicator: not 0, and no other one's that is here
  // As OperationPort's, of a communicator that the event names.
  virtual void record(Event event) = 0;
  virtual uint64_t fine_ns() = 0;
  // As Clock's; 0, too, if the time was not this communicator's alone.
  virtual uint64_t busy_ns() const = 0;
  // Seals the header and takes over one reference to the site's slab (kNoSlab: `payload` is
  // copied). An error: the transport refuses such a frame.
  virtual Status send(transport::PeerId peer, wire::FrameHeader header,
                      std::span<const std::byte> payload, SiteId site, SlabId slab) = 0;
  virtual Status send_shared(transport::PeerId peer, wire::FrameHeader header,
                             SharedBytes payload) = 0;
  virtual uint64_t carried_ns(const LinkUser& user, uint32_t machine) const = 0;  // LinkTable's
  virtual bool under_way(const LinkUser& user, uint32_t machine) const = 0;       // likewise
  // The link to `machine` is dead: it ends for everybody on it, each hears link_lost().
  virtual void lose_link(LinkUser& user, uint32_t machine, const Status& why) = 0;
};

class Communicator final : public OperationPort,
                           public PlanAgreement::Port,
                           public LinkUser,
                           private PilotPort,
                           private CeilingPort {
 public:
  enum class State : uint8_t { kJoining, kReady, kRunning, kFrozen, kFailed, kClosed };

  // Checks the first local rank's message; `own` is this daemon's instance.
  static Result<std::unique_ptr<Communicator>> create(const SessionOptions& session,
                                                      const wire::CreateCommunicator& message,
                                                      SiteId site, CommunicatorPort& port);
  ~Communicator() override;

  const Members& members() const override { return members_; }
  State state() const { return state_; }
  uint16_t index() const { return index_; }
  uint64_t step() const { return steps_.installed() ? steps_.step() : joining_.first_step(); }
  const wire::JobKey& job_key() const override { return joining_.job_key(); }
  ResidualStore::Owner owner() const;
  // It has ended: what the next one of its name may go on with.
  KeptResiduals take_residuals() { return steps_.take_residuals(members_.id); }

  // Local ranks
  struct Requester {
    SessionId session;
    SessionPort* port = nullptr;
    uint32_t request = 0;
    SiteId site = kHostSite;
  };
  void join(const Requester& from, const wire::CreateCommunicator& message);
  void register_tensors(uint32_t local, wire::RegisterTensors message);
  void commit(uint32_t local, uint32_t request, const wire::Commit& message);
  void redo(uint32_t local, uint32_t request);
  Status submit(uint32_t local, const cgx_submit_record& record);
  void leave(uint32_t local);                         // closed the communicator or said goodbye
  void lose_rank(uint32_t local, const Status& why);  // its process died
  // A rank of this machine has gone that was to join.
  void miss_rank(uint32_t rank, const std::string& why);
  // The place where this machine's ranks have their tensors is gone.
  void lose_site(const Status& why);
  // What another site's first rank says of the meeting.
  Status compare(const wire::CreateCommunicator& message) const {
    return joining_.compare(message);
  }
  bool has(uint32_t rank) const;  // here or, as far as known, elsewhere
  Status is_alive(uint32_t rank) const;
  bool uses(SessionId session) const;
  // A remembered failure makes room for another meeting under its name.
  bool gives_way_to(const wire::CreateCommunicator& message);
  // It has failed, is still held here, and was of another meeting: why it failed.
  Status stands_in_the_way_of(const wire::CreateCommunicator& message) const {
    const bool another = state_ == State::kFailed && !joining_.same_meeting(message);
    return another ? failure_ : Status();
  }

  // Peers
  void link_up(uint32_t machine, transport::PeerId peer) override;
  void link_lost(uint32_t machine, const Status& why) override;
  bool needs_links() const override {
    return state_ == State::kJoining || joining_.forget_at_ns() != 0;
  }
  bool living() const override { return state_ != State::kFailed && state_ != State::kClosed; }
  void link_remade(uint32_t machine) override;
  void receive(const wire::FrameHeader& header, std::span<const std::byte> payload) override;
  // This daemon is to stop: ends the communicator where no step or call is half done on any
  // machine. True: it has ended.
  bool leave_at_border(const Status& why);
  void forgive_silence();  // this daemon itself was stopped: peers' clocks start anew

  // Operators
  void apply_policy(const Policy& policy, bool dry_run, uint64_t expected_version,
                    PolicyAnswer answer);
  // What the tensor's choice costs; what a step would take under another policy, on so many
  // machines (0: as many as there are); what was measured. The coordinator's: steps are measured
  // for it.
  void explain(const std::string& tensor, ExplainAnswer answer);
  void what_if(const Policy& policy, uint32_t machines, WhatIfAnswer answer);
  void profile(ProfileAnswer answer);
  CommunicatorSnapshot snapshot() const;
  void add_peers(std::vector<PeerSnapshot>& peers) const;

  // Time
  bool work();  // at most about one part; true: did something
  void tick();  // timers: heartbeats, late ranks, lost peers, time-outs
  uint64_t next_deadline_ns() const { return next_tick_ns_; }
  bool operations_open() const;
  std::string in_flight() const;  // which operations, for people; empty: none, and no step is open
  bool tickets_open() const { return steps_.tickets_open() || calls_.tickets_open(); }
  void settle(Operation& operation, Ticket ticket, const SiteAnswer& answer);
  void sweep() {  // what ended, between two rounds
    steps_.sweep();
    calls_.sweep();
  }
  void forget_busy() { busy_mark_ns_ = 0; }  // the thread had other communicators
  uint32_t weight() const;
  uint64_t reserved_bytes() const;

  // OperationPort
  void send_part(const Operation& operation, const PartFrame& frame) override;
  void count(Counter counter, uint64_t amount) override;
  void record(Event event) override;
  uint64_t fine_ns() override { return port_.fine_ns(); }
  Ticket new_ticket() override { return port_.new_ticket(); }
  void expect(Ticket ticket, Operation& operation) override {
    port_.expect(ticket, *this, operation);
  }
  // PlanAgreement::Port
  void send_control(uint32_t machine, const ControlMessage& message) override;
  void broadcast(const ControlMessage& message);
  void broadcast_body(SharedBytes encoded_control) override;
  void send_to_others(uint32_t than, const SharedBytes& encoded_control);
  bool between_steps() const override { return steps_.idle() && !steps_.operations_open(); }
  std::shared_ptr<const TensorTable> table_for(PlanPurpose purpose) const override {
    return purpose == PlanPurpose::kCommit ? pending_ : table_;
  }
  void ask_planner(PlanQuestion question, PlannerPort::Answer answer) override;
  Result<PlanAgreement::PlanPtr> reserve(const FactsPtr& facts) override;
  uint64_t now_ns() const override { return port_.now_ns(); }
  uint64_t prepare_deadline_ns() const override {
    return now_ns() + port_.options().timeouts.prepare_ns;
  }
  uint64_t next_switch_step() const override;
  void install_committed(const PlanAgreement::PlanPtr& plan, uint64_t first_step) override;
  bool asks_otherwise(const Status& why) override;

 private:
  struct LocalState {  // beside Members::local
    uint32_t join_request = 0, commit_request = 0, redo_request = 0;
    uint64_t last_step = 0;
    bool committed = false, left = false;
    Registration tensors;
  };

  Communicator(Members members, const wire::CreateCommunicator& first, CommunicatorPort& port);

  // communicator_join.cc
  Status is_gone(uint32_t rank, const std::string& why) const;
  Status reserve_for_calls(const SlabCounts& slabs);
  void join_if_complete();
  void repeat_join();
  void all_joined();
  void begin_with_residuals(bool keep);
  void handle(uint32_t machine, const Join& message);
  void handle(uint32_t machine, const Joined& message);

  // communicator_commit.cc
  void commit_if_complete();
  void run_apart(std::function<Status()> work, std::function<void(const Status&)> then);
  std::vector<RegisteredBy> registered() const;
  void take_table(CommitTable& made);
  void handle(uint32_t machine, Table&& message);
  bool has_all_tables() const;
  void keep_table(uint32_t machine, std::vector<std::byte> table);
  void keep_table(uint32_t machine, EncodedTable table);
  void plan_tables();
  void refuse_commit(const Status& why);
  Result<PlanQuestion> commit_question(uint64_t epoch, uint64_t step);
  void keep_history(PlanPurpose purpose, const PreparedPlan& plan, uint64_t step);
  bool must_wait_for_replay() const;
  void replay_next_plan();
  void commit_plan();
  void reorder_if_useful();
  StepRunner::Homes homes() const;

  // communicator.cc
  Status apply_record(uint32_t local, const cgx_submit_record& record);
  Status submit_tensor(uint32_t local, const cgx_submit_record& record);
  Status submit_call(uint32_t local, const cgx_submit_record& record);
  struct Buffers {
    Place input, output;
  };
  Result<Buffers> buffers(uint32_t local, const cgx_submit_record& record, DType dtype,
                          uint64_t elements) const;
  Status elsewhere(const std::string& what, uint32_t arena, SiteId site) const;
  Status check_site_takes(const PlanFacts& facts) const;
  void make_room_for(const TensorTable& table);
  void refuse(uint32_t local, const cgx_submit_record& record, const Status& why);
  Result<ControlMessage> decode_of(uint32_t machine, std::span<const std::byte> body) const;
  void answer_join(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Status check_announced(const wire::FrameHeader& header);
  void receive_data(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void receive_control(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void keep_early(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void publish_call_failures();
  void publish_result_hashes();
  Scope scope_of(const Status& why) const;
  wire::FrameHeader header_for(wire::FrameType type) const;
  void send_to(uint32_t machine, wire::FrameHeader header, std::span<const std::byte> payload,
               SlabId slab);
  void check_sent(uint32_t machine, const Status& status);
  void send_body(uint32_t machine, std::span<const std::byte> encoded_control);
  void reply(uint32_t local, uint32_t& request, const Status& status, uint64_t value0 = 0,
             uint64_t value1 = 0);
  void handle(uint32_t machine, const Prepare& message);
  void handle(uint32_t machine, const Prepared& message);
  void handle(uint32_t machine, const Decided& message);
  void handle(uint32_t machine, const PolicyAsk& message);
  void handle(uint32_t machine, const PolicyAnswerMessage& message);
  void handle(uint32_t machine, const ReplicaHash& message);
  void handle(uint32_t machine, const Losses& message);
  void handle(uint32_t machine, const ProfileAsk& message);
  void handle(uint32_t machine, const ProfileAnswerMessage& message);
  void handle(uint32_t machine, const Bye& message);
  void handle(uint32_t machine, const CallFailure& message);

  // communicator_policy.cc
  Status check_weight(const Policy& policy) const;
  void try_policy(const Policy& policy, std::vector<std::string> warnings, PolicyAnswer answer);
  void pursue_wish();
  PlanQuestion question_of_own(uint64_t epoch, std::vector<uint32_t> order,
                               PlanOrigin origin) const;
  Status check_version(uint64_t expected) const;
  PlanAgreement::Question policy_question(const Policy& policy) const;
  void begin_with_policy();
  void took_force(const PreparedPlan& plan, uint64_t step);
  void keep_for_the_name(const Policy& policy);
  void note_forgotten(std::string_view text, const KeptFor& whose);
  std::vector<uint32_t> running_order() const;

  // communicator_pilot.cc
  bool searches_plans() const;
  bool is_searched_for() const;
  bool measures_steps() const;
  void keep_profile(const PreparedPlan& plan);
  std::vector<Group> groups_of_profile();
  SurveyQuestion question_of_job(Known known) const;
  PlanOrigin origin_of_search(const std::vector<Group>& groups, const Trial& trial) const;
  void measure(const Event& event);
  double busy_since_last_step();
  uint64_t whole_step(const Event& event) const;  // an event has its lower half
  void probe_link(const PreparedPlan& plan, const StepSample& sample);
  void send_probe(uint32_t machine, uint64_t bytes);
  uint64_t fine_now_ns() { return std::max(port_.now_ns(), port_.fine_ns()); }
  bool may_propose() const override;
  void propose(std::vector<Group> groups, const Trial& trial,
               std::function<void(const Result<PilotPort::Agreed>&)> answer) override;
  void report(const PlanNote& note) override;

  // communicator_profiles.cc
  double trip_ns() const;
  double lost_share() const;
  using SurveyAnswer = PlannerPort::SurveyAnswer;
  void survey(Known known, Wanted wanted, SurveyAnswer answer) override;
  void search_plans();
  void survey_if_heard();
  void stop_search();
  void tell_profile();

  // communicator_looks.cc
  using LookAnswer = std::function<void(const Result<SurveyQuestion>&)>;
  struct Look {
    LookAnswer answer;
    uint64_t deadline_ns = 0;
  };
  Status check_look() const;
  void look(LookAnswer answer);
  void note_step_end();
  void show_step(const StepSample& sample);
  void answer_looks();
  void answer_late_looks();

  // communicator_ceilings.cc
  bool sets_ceilings() const;
  void follow_ceilings(const Event& event);
  void tell_losses();
  bool free_to_propose() const;
  bool may_set_ceilings() const override;
  void search_ceilings(CeilingQuestion question, Wanted wanted,
                       std::function<void(const Result<CeilingAnswer>&)> answer) override;
  void propose_ceilings(std::vector<CodecSpec> ceilings, PlanOrigin origin,
                        std::function<void(const Result<CeilingPort::Agreed>&)> answer) override;

  // communicator_terms.cc
  enum class Origin : uint8_t { kHere, kElsewhere };  // others have to be told, or know
  void fail(const Status& why, Scope scope, Origin origin = Origin::kHere);
  void freeze(bool take_results);
  bool work_frozen();
  void end(const Status& why);
  void answer_operators(const Status& why);
  void tell_failure(uint32_t machine);
  void close_if_empty();
  void check_left();
  void handle(uint32_t machine, const Failure& message);
  void handle(uint32_t machine, const Flush& message);
  void handle(uint32_t machine, const Report& message);
  void handle(uint32_t machine, const Start& message);
  void handle(uint32_t machine, const Left& message);
  Report make_report() const;
  void flush();
  void report_if_flushed();
  void start_term_if_reported();
  bool lacks_plan_of(const Start& start) const;
  void ask_for_plan_of(const Start& start);
  void start_awaited(const Result<FactsPtr>& facts);
  void start_term(const Start& start, const PlanAgreement::PlanPtr& plan = nullptr);
  void replay_early();
  void replay_held();

  // communicator_clocks.cc
  std::vector<uint32_t> not_committing() const;  // local ranks
  void check_frozen();
  // The machine is not to blame yet, who waits for it `waited_ns` too long, of at most `limit_ns`.
  bool excused(uint32_t machine, uint64_t waited_ns, uint64_t limit_ns) const;
  bool cannot_answer(uint32_t machine) const;
  // By what stands still: this one, where its site has not answered, or one that cannot answer; or
  // kNobody.
  uint32_t awaited_machine() const;
  void check_peers();
  void check_agreements();
  void check_stalled();
  struct Waiting {          // of local ranks that have done their part
    uint64_t since_ns = 0;  // 0: nobody waits
    bool of_step = false;
    uint64_t number = 0;  // of the step or call
  };
  Waiting waiting() const;
  struct LateGpu {  // of a local rank that has submitted the tensor
    uint32_t rank = 0;
    std::string tensor;
  };
  std::optional<LateGpu> late_gpu(const Operation& operation) const;
  std::vector<LateGpu> late_gpus(bool of_step, uint64_t number) const;
  std::vector<uint32_t> missing_here(bool of_step, uint64_t number) const;
  std::string gpus_text(const Waiting& waiting) const;
  std::vector<uint32_t> late_ranks(const Waiting& waiting) const;
  void show_late(std::vector<RankSnapshot>& ranks) const;
  void check_late();
  void send_heartbeats();
  Peers::Beat beat() const;
  void send_heartbeat(uint32_t machine, const Peers::Beat& own, uint64_t padded_bytes = 0);
  void receive_heartbeat(const wire::FrameHeader& header, std::span<const std::byte> payload);

  Members members_;
  CommunicatorPort& port_;
  const uint16_t index_;
  BufferPool pool_;  // outlives the plans that reserve from it
  State state_ = State::kJoining;
  uint32_t awaited_ = kNobody;  // at the last heartbeats
  Status failure_;
  uint64_t timeout_ns_ = 0, created_ns_ = 0;
  bool leaving_ = false;  // nothing more is started: leave_at_border() waits for the others
  SlabCounts call_slabs_;
  bool calls_wait_for_memory_ = false;  // of those
  uint64_t commits_ = 0;                // in force since the start
  bool reordered_ = false;
  uint32_t reorder_tries_ = 0;
  uint64_t reorder_after_ = 0;  // so many steps
  uint64_t kept_epoch_ = 0;     // the newest in the history of plans
  PolicyDesk desk_;
  std::string feedback_begins_;  // coordinator: as Joining's
  std::vector<LocalState> local_;
  Attempts attempts_;
  Joining joining_;
  Peers peers_;
  Terms terms_;
  std::shared_ptr<const TensorTable> table_;    // of the plan in force
  std::shared_ptr<const TensorTable> pending_;  // committed here, its plan not decided
  std::vector<EncodedTable> tables_;  // coordinator: pending ones, by machine; equal ones are one
  std::vector<bool> has_table_;       // whose came, until the commit is decided
  PlanReplay replay_;
  PlanAgreement agreement_;
  StepRunner steps_;
  CallRunner calls_;
  struct AwaitedStart {
    Start start;
    PlanAgreement::PlanPtr running;  // when its plan was asked for
  };
  std::optional<AwaitedStart> awaited_start_;  // this machine lacks its plan, which is being made
  std::vector<Left> left_;
  ReplicaWatch replicas_;
  StepMeter meter_;
  // What the port's busy_ns() was when the last step was complete (0: that says nothing of the next
  // one), and the first call that was not.
  uint64_t busy_mark_ns_ = 0, busy_mark_call_ = 0;
  AnswerMeter answers_;  // to this machine's frames
  Pilot pilot_;
  MachineProfiles profiles_;               // coordinator: what others say of themselves
  PlanTimes plan_times_;                   // member: what it says itself
  std::optional<uint64_t> profile_asked_;  // member: to be answered in the next round
  LinkProbe probe_;
  bool probe_disturbs_ = false;  // the step that runs
  uint64_t probed_epoch_ = 0;    // of the plan that it goes by
  uint64_t profiled_epoch_ = 0;  // of the plan that was kept for the name
  bool begins_with_profile_ = false, profile_refused_ = false;
  uint64_t step_ended_ns_ = 0, step_gap_ns_ = 0;  // of the last one, since the one before
  std::vector<Look> looks_;                       // that wait for steps
  std::vector<StepSample> looked_;                // usual ones since the first of them came
  CeilingWatch ceilings_{*this};
  std::optional<Losses> losses_to_tell_;  // member: the coordinator, in the next round
  uint64_t commit_since_ns_ = 0;
  uint64_t next_tick_ns_ = 0, next_warning_ns_ = 0, warning_step_ns_ = 0;
  uint64_t wire_bytes_sent_ = 0;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);  // for late answers
};

const char* state_name(Communicator::State state);

}  // namespace cgx::scheduler
